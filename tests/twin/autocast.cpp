// Autocast by the lists that torch keeps for every accelerator.
#include <ATen/autocast_mode.h>

#define IN_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define IN_FLOAT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define IN_FLOAT_UNLESS_TOLD(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define IN_WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(IN_LOWER_PRECISION)
  AT_FORALL_FP32(IN_FLOAT)
  AT_FORALL_FP32_SET_OPT_DTYPE(IN_FLOAT_UNLESS_TOLD)
  AT_FORALL_PROMOTE(IN_WIDEST)
}
