/* Codebooks of the IQ types, handed over once by the caller. */
#ifndef KT_CODEBOOK_H
#define KT_CODEBOOK_H

#include <stdint.h>

extern int8_t kt_codebook_iq2_xxs[256 * 8];
extern int8_t kt_codebook_iq2_xs[512 * 8];
extern int8_t kt_codebook_iq2_s[1024 * 8];
extern int8_t kt_codebook_iq3_xxs[256 * 4];
extern int8_t kt_codebook_iq3_s[512 * 4];
extern int8_t kt_codebook_iq1[2048 * 8]; /* IQ1_S and IQ1_M */

/* 1 if `type` needs no codebook or has been given its own. */
int kt_codebook_ready(int type);

#endif
