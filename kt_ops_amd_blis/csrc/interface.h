/* The native interface of kt_ops_amd_blis: plain declarations, read by the C sources and by cffi alike,
 * so there are no preprocessor lines here. Nothing in it throws, prints or exits; every function that
 * can fail returns a kt_status. Sizes are in elements unless a name says bytes. */

typedef enum {
  KT_OK = 0,
  KT_BAD_ARGUMENT = 1,  /* a size, stride or option that cannot be computed on */
  KT_NO_MEMORY = 2,     /* an allocation failed; nothing was changed */
  KT_BAD_EXPERT = 3,    /* an expert id outside [-1, experts); see *bad_index */
  KT_NOT_FINITE = 4,    /* weights hold NaN or infinity */
  KT_NO_THREADS = 5,    /* worker threads could not be started */
  KT_BAD_ISA = 6,       /* the forced instruction set is not available here */
  KT_INT8_ONLY = 7      /* the int4 entry points: this backend computes in int8 only */
} kt_status;

typedef enum { KT_F32 = 0, KT_F16 = 1, KT_BF16 = 2 } kt_dtype;

typedef enum {
  KT_SILU = 0,
  KT_GELU = 1,
  KT_GELU_TANH = 2,
  KT_SWIGLU_OAI = 3,
  KT_RELU = 4
} kt_activation_kind;

/* Addresses inside a loaded BLIS (or AOCL-DLP). set_threads and get_threads act on the calling thread
 * and may be NULL where the library has neither. */
typedef struct {
  void *gemm;         /* aocl_gemm_s8s8s32os32 */
  void *reorder;      /* aocl_reorder_s8s8s32os32 */
  void *reorder_size; /* aocl_get_reorder_buf_size_s8s8s32os32 */
  void *set_threads;  /* bli_thread_set_num_threads_local or its like: void (int64_t) */
  void *get_threads;  /* int64_t (void) */
  int32_t threads_are_int; /* set_threads takes and get_threads returns int (OpenMP's own functions) */
  void *group_gemm;        /* aocl_gemm_s8s8s32of32_sym_quant; NULL unless it was proven to work here */
  void *group_reorder;
  void *group_reorder_size;
} kt_blis;

/* A weight matrix W (n out, k in) as int8 panels that BLIS reordered.
 *
 * n and k are padded to multiples of 64 with zeros. Columns are cut into chunks of `width` (the last one
 * may be narrower). One scale per output channel is groups == 1, group == k; otherwise `group` input
 * values share one. The scales of chunk c are (groups, columns of the chunk) at scales + c * groups * width.
 * Chunk c starts at panels + c * chunk_bytes and is reordered as a whole if `fused` (or groups == 1);
 * otherwise each group is reordered on its own, slice_bytes apart. */
typedef struct {
  int64_t n, k, width, chunks, group, groups;
  int64_t slice_bytes, chunk_bytes, panel_bytes; /* panel_bytes and scale_count: one whole matrix */
  int64_t scale_count;
  int32_t fused; /* all groups in one product (group_gemm) */
} kt_layout;

/* One matrix to quantise and reorder, or a run of its chunks. `rows` rows of source start at chunk
 * `first`; in a paired layout chunk columns alternate: the first half from `a`, the second from `b`. */
typedef struct {
  int8_t *panels;
  float *scales;
  const void *a;
  const void *b;        /* NULL unless paired (gate and up) */
  int64_t rows;         /* rows available from a (and from b) */
  int64_t first, count; /* chunks to write */
} kt_pack_job;

typedef struct {
  int64_t experts, hidden, inter;
  kt_layout gate_up; /* paired: columns 0..width/2 of a chunk are gate, the rest up; k = hidden */
  kt_layout down;    /* k = inter */
  const int8_t *gate_up_panels;
  const float *gate_up_scales;
  const int8_t *down_panels;
  const float *down_scales;
  const float *gate_bias; /* (experts, inter padded to 64), zeros in the padding; or NULL */
  const float *up_bias;
  const float *down_bias; /* (experts, hidden padded to 64); or NULL */
  int32_t activation;     /* kt_activation_kind */
  float alpha, limit;     /* of KT_SWIGLU_OAI */
} kt_experts;

typedef struct {
  const void *x;         /* (tokens, hidden), rows x_stride apart */
  int64_t tokens, x_stride;
  int32_t x_dtype;       /* kt_dtype, also of out */
  const int64_t *ids;    /* (tokens, top_k) */
  const float *weights;  /* (tokens, top_k) */
  int64_t top_k;
  void *out;             /* (tokens, hidden), rows out_stride apart */
  int64_t out_stride;
  int64_t bad_index;     /* set with KT_BAD_EXPERT: flat index into ids */
} kt_experts_call;

typedef struct {
  kt_layout layout;
  const int8_t *panels;
  const float *scales;
  const float *bias; /* (n of the layout), zeros in the padding; or NULL */
  int64_t out_features, in_features;
} kt_linear;

typedef struct kt_pool kt_pool;

/* --- instruction sets: "avx512" or "portable"; the best one is the default ---------------------- */
const char *kt_isa(void);
kt_status kt_force_isa(const char *name);

/* --- memory: 64-byte aligned, huge pages asked for where they help ----------------------------- */
char *kt_alloc(int64_t bytes);
void kt_free(void *address, int64_t bytes);

/* --- threads -------------------------------------------------------------------------------- */
kt_status kt_pool_new(int32_t threads, kt_pool **pool);
void kt_pool_free(kt_pool *pool);
int32_t kt_pool_threads(const kt_pool *pool);
int64_t kt_pool_scratch_bytes(const kt_pool *pool);

/* --- weights -------------------------------------------------------------------------------- */
kt_status kt_layout_init(const kt_blis *blis, int64_t n, int64_t k, int64_t width, int64_t group,
                         kt_layout *layout);
kt_status kt_pack(const kt_blis *blis, kt_pool *pool, const kt_layout *layout, int64_t n, int64_t k,
                  int32_t dtype, int64_t row_bytes, const kt_pack_job *jobs, int64_t count);

/* --- computation ---------------------------------------------------------------------------- */
kt_status kt_experts_forward(const kt_blis *blis, kt_pool *pool, const kt_experts *layer,
                             kt_experts_call *call);
kt_status kt_linear_forward(const kt_blis *blis, kt_pool *pool, const kt_linear *layer, const void *x,
                            int64_t tokens, int64_t x_stride, int32_t x_dtype, void *out,
                            int64_t out_stride);

/* Dynamic symmetric int8 of `rows` rows: q (rows, padded), scales (rows, groups). */
kt_status kt_quantize_rows(const void *x, int64_t rows, int64_t k, int64_t padded, int64_t x_stride,
                           int32_t dtype, int64_t group, int8_t *q, float *scales);

/* --- the batch-GEMM interface --------------------------------------------------------------- */
kt_status kt_prefill_gemm_s8s8s32(const kt_blis *blis, int32_t threads, char order, char transa,
                                  char transb, int64_t m, int64_t n, int64_t k, int32_t alpha,
                                  const int8_t *a, int64_t lda, int8_t oa, const int8_t *b, int64_t ldb,
                                  int8_t ob, char format_b, int32_t beta, int32_t *c, int64_t ldc,
                                  int32_t oc);
kt_status kt_decode_gemm_s8s8s32(const kt_blis *blis, int32_t threads, char order, char transa,
                                 char transb, int64_t m, int64_t n, int64_t k, int32_t alpha,
                                 const int8_t *a, int64_t lda, int8_t oa, const int8_t *b, int64_t ldb,
                                 int8_t ob, char format_b, int32_t beta, int32_t *c, int64_t ldc,
                                 int32_t oc);
kt_status kt_prefill_int4_gemm_s8s8s32(void);
kt_status kt_decode_int4_gemm_s8s8s32(void);
kt_status kt_reorder_b_size(const kt_blis *blis, char order, char transb, int64_t k, int64_t n,
                            int64_t *bytes);
kt_status kt_reorder_b(const kt_blis *blis, char order, char transb, int64_t k, int64_t n, int64_t ldb,
                       const int8_t *b, int8_t *out);
