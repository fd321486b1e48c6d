/* gemm_variants.h: the kernels that gemm_bench knows; the shapes repeat those in gemm.cu and gemm_sm90.cu. */
static const variant variants[] = {
    V(k_gemm_q4g64, CU_FMT_AFFINE, gm::fmt<4, 64, 2>, 4, 2, 2, 8, 3, 1, true),
    V(k_gemm_q2g128, CU_FMT_AFFINE, gm::fmt<2, 128, 1>, 4, 2, 2, 8, 3, 1, true),
    V(k_gemm_q4g32, CU_FMT_AFFINE, gm::fmt<4, 32, 2>, 4, 2, 2, 8, 5, 1, true),
    V(k_gemm_q8g64, CU_FMT_AFFINE, gm::fmt<8, 64, 1>, 4, 2, 2, 8, 5, 1, true),
    V(k_gemm_planes, CU_FMT_PLANES, gm::fmt<8, 64, 1, true>, 4, 2, 2, 4, 5, 1),
#ifdef CB_GEMM_VARIANTS
    V(k_gemm_q4g64_r, CU_FMT_AFFINE, gm::fmt<4, 64, 2>, 4, 2, 2, 8, 4, 1),
    V(k_gemm_q4g64_b, CU_FMT_AFFINE, gm::fmt<4, 64, 2>, 4, 4, 2, 4, 3, 1, true),
    V(k_gemm_q4g64_c, CU_FMT_AFFINE, gm::fmt<4, 64, 2>, 2, 4, 4, 4, 3, 1, true),
    V(k_gemm_q4g64_d, CU_FMT_AFFINE, gm::fmt<4, 64, 2>, 4, 2, 2, 4, 3, 2),
    V(k_gemm_q4g64_e, CU_FMT_AFFINE, gm::fmt<4, 64, 1>, 4, 2, 2, 8, 5, 1, true),
    V(k_gemm_q2g128_b, CU_FMT_AFFINE, gm::fmt<2, 128, 1>, 4, 4, 2, 4, 3, 1, true),
#endif
    W(k_gemm_q4g64_sm90, CU_FMT_AFFINE, gm::fmt<4, 64, 1>, 128, 6, 2),
    W(k_gemm_q2g128_sm90, CU_FMT_AFFINE, gm::fmt<2, 128, 1>, 128, 4, 2),
    W(k_gemm_q4g32_sm90, CU_FMT_AFFINE, gm::fmt<4, 32, 2>, 128, 6, 2),
    W(k_gemm_q8g64_sm90, CU_FMT_AFFINE, gm::fmt<8, 64, 1>, 128, 5, 2),
    W(k_gemm_planes_sm90, CU_FMT_PLANES, gm::fmt<8, 64, 1, true>, 64, 6, 2),
#ifdef CB_GEMM_VARIANTS
    W(k_gemm_q4g64_sm90_0, CU_FMT_AFFINE, gm::fmt<4, 64, 1>, 128, 6, 0),
    W(k_gemm_q4g64_sm90_1, CU_FMT_AFFINE, gm::fmt<4, 64, 1>, 128, 6, 1),
    W(k_gemm_q4g64_sm90_n, CU_FMT_AFFINE, gm::fmt<4, 64, 1>, 128, 6, 2, false),
    W(k_gemm_q4g64_sm90_p, CU_FMT_AFFINE, gm::fmt<4, 64, 1>, 128, 6, 0, true, true),
    W(k_gemm_q4g64_sm90_q, CU_FMT_AFFINE, gm::fmt<4, 64, 1>, 128, 6, 0, false, true),
    W(k_gemm_q2g128_sm90_p, CU_FMT_AFFINE, gm::fmt<2, 128, 1>, 128, 4, 0, true, true),
    W(k_gemm_q8g64_sm90_p, CU_FMT_AFFINE, gm::fmt<8, 64, 1>, 128, 5, 0, true, true),
    W(k_gemm_q4g32_sm90_p, CU_FMT_AFFINE, gm::fmt<4, 32, 2>, 128, 6, 0, true, true),
#endif
};
