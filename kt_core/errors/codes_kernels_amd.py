"""KT530 to KT549: int8 kernels through AMD BLIS."""

from __future__ import annotations

from kt_core.errors.codes import Code

_INSTALL = 'pip install "kt-ops-amd-blis[aocl]"'

CODES = (
    Code(
        "KT530",
        "AMD BLIS does not exist for this system",
        "The int8 kernels call AMD's BLIS, whose low-precision products (LPGEMM) exist for Linux on "
        "x86-64 only. Choose a rule file whose kernels run here; kt doctor lists them.",
        "KT530 AMD BLIS with LPGEMM exists for Linux on x86-64 only",
    ),
    Code(
        "KT531",
        "No BLIS was found",
        "The kernel computes with AMD's BLIS (or AOCL-DLP), which is looked for when it is needed: "
        "KT_BLIS_LIBRARY, KT_BLIS_ROOT, BLIS_ROOT, CPUINFER_BLIS_ROOT, the aoclda package, "
        "/usr/local, /usr and the loader's path. The first two are orders: with one of them set "
        f"nothing else is considered. {_INSTALL} brings one that works.",
        "KT531 no libblis or libaocl-dlp was found; looked in the aoclda package, /usr/local, /usr, "
        f"the loader's path\n  help: {_INSTALL}, or point KT_BLIS_LIBRARY at AMD's libblis",
    ),
    Code(
        "KT532",
        "This BLIS has no low-precision products",
        "BLIS was found, but it does not define aocl_gemm_s8s8s32os32. Distributions' packages and "
        "default builds are like that: the int8 products are an add-on (aocl_gemm) that must be "
        f"asked for when BLIS is configured. {_INSTALL} brings a BLIS that has it.",
        "KT532 /usr/lib/x86_64-linux-gnu/libblis.so.4 has no aocl_gemm_s8s8s32os32 (BLIS built "
        "without the aocl_gemm add-on)",
    ),
    Code(
        "KT533",
        "The CPU has no AVX512-VNNI",
        "AMD BLIS multiplies int8 matrices with AVX512-VNNI instructions only (AMD Zen 4 and later, "
        "Intel Ice Lake and later). On other CPUs it would print a line and compute nothing, so it "
        "is not even loaded. Name another kernel, such as kt_ops_cpu.experts.",
        "KT533 this CPU lacks avx512_vnni; AMD BLIS computes int8 with AVX512-VNNI only",
    ),
    Code(
        "KT534",
        "A BLIS library cannot be loaded",
        "The file is damaged, is for another processor, or needs a library that is not there. The "
        "message holds the loader's own words. A library is tried in a process of its own, so a "
        "crash while it is loaded ends here too.",
        "KT534 /opt/blis/lib/libblis-mt.so.5 cannot be loaded: libomp.so: cannot open shared object "
        "file: No such file or directory",
    ),
    Code(
        "KT535",
        "BLIS is built for 32-bit integers",
        "Sizes are passed to BLIS as 64-bit integers. A library built with another width would read "
        "wrong numbers, so it is refused. AMD's own builds and the aoclda package use 64 bits.",
        "KT535 /opt/blis/lib/libblis.so is built for 32-bit integers; this backend passes 64-bit "
        "sizes",
    ),
    Code(
        "KT536",
        "BLIS does not multiply correctly here",
        "The library loads, but a small int8 product came out wrong or was not computed at all: it was "
        "built for another CPU, or AOCL_ENABLE_INSTRUCTIONS or BLIS_ARCH_TYPE makes it behave like an "
        "older one. What it printed is part of the message.",
        "KT536 /opt/blis/lib/libblis-mt.so does not multiply int8 matrices here",
    ),
    Code(
        "KT537",
        "The AMD BLIS backend computes in int8 only",
        "BLIS has no product of int8 activations with int4 weights for this use. Use MOE_INT8, or a "
        "kernel that keeps 4-bit weights packed, such as kt_ops_cpu.experts.",
        "KT537 decode_int4_gemm: the AMD BLIS backend computes in int8 only\n  help: use MOE_INT8",
    ),
    Code(
        "KT538",
        "MOE_INT8 does not compute this activation",
        "The gate's activation is fused into the layer; silu, relu, gelu, gelu_tanh and gpt-oss' clamped "
        "swiglu are. Name another experts kernel for this model.",
        'KT538 model.layers.0.mlp.experts: the activation "relu2" is not computed by MOE_INT8',
    ),
    Code(
        "KT539",
        "An expert id is outside the layer",
        "A router gave an id that is neither an expert of the layer nor -1, which means no expert. "
        "Nothing was computed.",
        "KT539 model.layers.0.mlp.experts was given an expert id outside the layer\n"
        "  token 3, slot 0: 64; experts 0…63",
    ),
    Code(
        "KT540",
        "An int8 kernel was given tensors it cannot compute on",
        "Shapes, types or devices do not fit the layer, or it was called before its weights were "
        "loaded. Activations are float32, float16 or bfloat16 on the CPU.",
        "KT540 mlp.experts was given activations of shape [4, 1024], not [tokens, 2048]",
    ),
    Code(
        "KT541",
        "Weights hold NaN or infinity",
        "A channel with a value that is not finite has no int8 scale. The weight file is damaged, or "
        "was converted wrongly.",
        "KT541 the weights of model.layers.3.mlp.experts hold NaN or infinity",
    ),
    Code(
        "KT542",
        "A cache file was made for something else",
        "Reordered weights fit one library, CPU and scheme; the message says what differs. The file "
        "is neither used nor replaced. Delete it, and it is made anew.",
        "KT542 /cache/5b0c….moe_int8 holds weights that were reordered for something else\n"
        "  library: 'AOCL-BLAS 5.2.0' in the file, 'AOCL-BLAS 5.3.0' here\n"
        "  help: rm /cache/5b0c….moe_int8",
    ),
    Code(
        "KT543",
        "A cache file is damaged or cannot be accessed",
        "The file does not begin as it should, is too short or too long, or the system refused to "
        "read or write it. Delete it, or choose another cache_dir.",
        "KT543 /cache/5b0c….moe_int8 cannot be used: it has 4,096 bytes, not 301,989,888",
    ),
    Code(
        "KT544",
        "Not enough memory for int8 weights or scratch",
        "int8 experts take one byte a weight, and a call takes scratch in proportion to its tokens. "
        "Place fewer layers on this kernel, or give it fewer tokens at a time.",
        "KT544 there is not enough memory for model.layers.3.mlp.experts (301,989,888 bytes)",
    ),
    Code(
        "KT545",
        "The number of threads is wrong",
        "KT_CPU_THREADS must be a number from 1 to 1024; without it kt takes what affinity, cgroup "
        "quota and physical cores allow. It is also reported when the system starts no more threads.",
        'KT545 KT_CPU_THREADS="all" is not a number of threads',
    ),
    Code(
        "KT546",
        "Arguments of the batch-GEMM interface are wrong",
        "BLIS would answer a wrong order, leading dimension or size by printing a line and leaving "
        "the result as it was; it is refused before that. Reordered B goes with row-major products "
        "only; offsets must be zero.",
        "KT546 prefill_gemm: the leading dimension of a is 4, but its rows have 64 values",
    ),
    Code(
        "KT547",
        "This method is not one of the wrapper's",
        "KTMoEWrapper in kt_ops_amd_blis.compat serves MOE_INT8, LLAMAFILE and BF16; MOE_INT4 exists "
        "for other processors only. The AMX methods need Intel's AMX.",
        'KT547 KTMoEWrapper has no method "AMXINT4" here\n  methods: MOE_INT8, LLAMAFILE, BF16',
    ),
    Code(
        "KT548",
        "The compiled part of kt-ops-amd-blis is missing",
        "The package is installed without the extension that was built with it, usually by copying "
        "files or by an interrupted installation.",
        "KT548 the compiled part of kt-ops-amd-blis cannot be loaded\n"
        "  help: pip install --force-reinstall --no-deps kt-ops-amd-blis",
    ),
    Code(
        "KT549",
        "CPUINFER_ENABLE_BLIS has no effect",
        "In KTransformers that variable compiled the AMD backend in. Here nothing is compiled in: "
        f"{_INSTALL}, and name the kernel MOE_INT8 in a rule file. To use a BLIS of your own, point "
        "KT_BLIS_LIBRARY or KT_BLIS_ROOT at it. Unset the variable.",
        "KT549 CPUINFER_ENABLE_BLIS=ON has no effect: nothing is compiled in, BLIS is found at run "
        "time",
    ),
)
