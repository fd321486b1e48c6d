/* kernels_avx2.c: which slots avx2 replaces. */
#include "kernels/kernels.h"

void cb_kernels_set_avx2(cb_kernels *k)
{
    k->name = "avx2";
}
