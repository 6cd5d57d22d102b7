// Operators: everything runs on the CPU over the device's own bytes, after a check that the devices agree.
#include "twin.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/native/DispatchStub.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <array>
#include <string>
#include <tuple>

// torch exports this stub, but ships no header that declares it.
namespace at::native {
DECLARE_DISPATCH(Tensor (*)(const Tensor& indices, IntArrayRef size), flatten_indices_stub)
}

namespace twin {
namespace {

using at::Tensor;
using c10::IntArrayRef;
using c10::IValue;
using OptionalTensor = std::optional<at::Tensor>;

// --- any operator ---------------------------------------------------------------------------------------------------

bool is_copy(const std::string& name) { return name == "aten::copy_" || name == "aten::copy_sparse_to_sparse_"; }

// Copies exist to cross devices; strided nested tensors keep their sizes on the CPU.
bool may_mix_devices(const std::string& name) { return is_copy(name) || name.rfind("aten::_nested", 0) == 0; }

// Like CUDA: the tensors of one operator share a device; only 0-dim CPU tensors may join, and only to be read.
class DeviceCheck {
 public:
  explicit DeviceCheck(const std::string& operator_name) : operator_name_(operator_name) {}

  void take(const IValue& value, bool written) {
    if (value.isTensor()) take(value.toTensor(), written);
    if (value.isStorage()) take(value.toStorage().device());
    if (value.isTensorList())
      for (const Tensor& t : value.toTensorList()) take(t, written);
    if (value.isOptionalTensorList())
      for (const OptionalTensor& t : value.toOptionalTensorList()) take_index(t);
  }

 private:
  void take(const Tensor& t, bool written) {
    if (!t.defined() || (t.is_cpu() && t.dim() == 0 && !written)) return;
    take(t.device());
  }
  // Indices may always come from the CPU.
  void take_index(const OptionalTensor& t) {
    if (t && t->defined() && !t->is_cpu()) take(t->device());
  }
  void take(c10::Device device) {
    TORCH_CHECK(!home_ || *home_ == device,
                "Expected all tensors to be on the same device, but found at least two devices, ", *home_, " and ",
                device, "! (in ", operator_name_, ")");
    home_ = device;
  }

  const std::string& operator_name_;
  std::optional<c10::Device> home_;
};

void check_devices(const c10::FunctionSchema& schema, c10::ArrayRef<IValue> arguments) {
  if (may_mix_devices(schema.name())) return;
  DeviceCheck check(schema.name());
  for (const auto i : c10::irange(arguments.size())) {
    const auto* alias = schema.arguments()[i].alias_info();
    check.take(arguments[i], alias && alias->isWrite());
  }
}

template <typename Element, typename Convert>
c10::List<Element> converted(const c10::List<Element>& list, Convert&& convert) {
  c10::List<Element> result;
  for (const Element& element : list) result.push_back(convert(element));
  return result;
}

IValue lent(Loan& loan, const IValue& value) {
  const auto lend = [&](const Tensor& t) { return loan.lend(t); };
  const auto lend_optional = [&](const OptionalTensor& t) { return t ? OptionalTensor(loan.lend(*t)) : t; };
  if (value.isTensor()) return lend(value.toTensor());
  if (value.isTensorList()) return converted(value.toTensorList(), lend);
  if (value.isOptionalTensorList()) return converted(value.toOptionalTensorList(), lend_optional);
  if (value.isStorage()) return loan.lend(value.toStorage());
  if (value.isGenerator()) return engine_of(value.toGenerator());
  if (value.isDevice()) return c10::Device(c10::kCPU);
  return value;
}

IValue brought_home(Loan& loan, const IValue& value) {
  const auto bring_home = [&](const Tensor& t) { return loan.bring_home(t); };
  if (value.isTensor()) return bring_home(value.toTensor());
  if (value.isTensorList()) return converted(value.toTensorList(), bring_home);
  return value;
}

c10::Device with_index(c10::Device device) {
  if (device.type() != kTwin || device.has_index()) return device;
  return c10::impl::getDeviceGuardImpl(kTwin)->getDevice();
}

std::optional<c10::Device> device_argument(c10::ArrayRef<IValue> arguments) {
  for (const auto& value : arguments)
    if (value.isDevice()) return with_index(value.toDevice());
  return std::nullopt;
}

bool lacks_generator(const c10::Argument& argument, const IValue& value) {
  if (!value.isNone()) return false;
  const auto* optional = argument.type()->castRaw<c10::OptionalType>();
  return optional && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

// Left alone, the CPU kernel would draw from the CPU's own generator.
void supply_generators(const c10::FunctionSchema& schema, const std::optional<c10::Device>& home, IValue* arguments) {
  if (!home || home->is_cpu()) return;
  for (const auto& argument : schema.arguments()) {
    if (lacks_generator(argument, *arguments)) *arguments = engine_of(default_generator(home->index()));
    ++arguments;
  }
}

c10::DispatchKeySet cpu_counterpart(c10::DispatchKeySet keys) {
  const auto kind = c10::toFunctionalityKey(keys.highestPriorityTypeId());
  return c10::DispatchKeySet(c10::toRuntimePerBackendFunctionalityKey(kind, c10::BackendComponent::CPUBit));
}

void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto first = stack->size() - schema.arguments().size();
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  check_devices(schema, arguments);
  if (is_copy(schema.name())) account_for_copy();

  Loan loan(device_argument(arguments));
  for (auto i = first; i < stack->size(); ++i) (*stack)[i] = lent(loan, (*stack)[i]);
  supply_generators(schema, loan.home(), stack->data() + first);
  {
    const at::AutoDispatchBelowADInplaceOrView lent_tensors_have_no_history;
    op.redispatchBoxed(cpu_counterpart(keys), stack);
  }
  loan.settle();
  for (auto i = first; i < stack->size(); ++i) (*stack)[i] = brought_home(loan, (*stack)[i]);
}

torch::CppFunction on_cpu() { return torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>(); }

// --- operators that no CPU kernel stands for ------------------------------------------------------------------------

Tensor empty(IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool /*non_blocking*/) {
  account_for_copy();
  Loan loan;
  loan.lend(to).copy_(loan.lend(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

void record_stream(Tensor&, at::Stream) {}

// The CPU kernel takes no generator, and would draw from the CPU's own.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, at::kBool)};
  auto mask = at::empty_like(input, at::kBool).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p == 1 ? 0.0 : 1 / (1 - p)), mask};
}

Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                   int64_t groups) {
  std::optional<c10::Device> device;
  c10::impl::check_and_update_common_device(device, input, "convolution", "input");
  c10::impl::check_and_update_common_device(device, weight, "convolution", "weight");
  c10::impl::check_and_update_common_device(device, bias, "convolution", "bias");
  Loan loan;
  const auto cpu_bias = bias ? OptionalTensor(loan.lend(*bias)) : bias;
  return loan.bring_home(at::convolution(loan.lend(input), loan.lend(weight), cpu_bias, stride, padding, dilation,
                                         transposed, output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                                                        IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                                        bool transposed, IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> wanted) {
  Loan loan;
  const auto bias_size = transposed ? weight.size(1) * groups : weight.size(0);
  const auto [grad_input, grad_weight, grad_bias] =
      at::convolution_backward(loan.lend(grad), loan.lend(input), loan.lend(weight), {{bias_size}}, stride, padding,
                               dilation, transposed, output_padding, groups, wanted);
  return {loan.bring_home(grad_input), loan.bring_home(grad_weight), loan.bring_home(grad_bias)};
}

// Called past the dispatcher, when the invariants of a sparse tensor are checked.
Tensor flatten_indices(const Tensor& indices, IntArrayRef size) {
  auto flat = indices.select(0, 0).clone();
  for (const auto dim : c10::irange(1, indices.size(0))) flat.mul_(size[dim]).add_(indices.select(0, dim));
  return flat;
}

// --- recurrent cells: fused on every accelerator, so that the CPU has no kernel of that shape ------------------------

Tensor plus(const Tensor& sum, const OptionalTensor& bias) { return bias && bias->defined() ? sum + *bias : sum; }

Tensor total(const Tensor& grad_gates, bool has_bias) { return has_bias ? grad_gates.sum(0) : Tensor(); }

Tensor through_sigmoid(const Tensor& grad, const Tensor& gate) { return grad * (1 - gate) * gate; }

Tensor through_tanh(const Tensor& grad, const Tensor& value) { return grad * (1 - value * value); }

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto gates = plus(plus(input_gates + hidden_gates, input_bias), hidden_bias).chunk(4, 1);
  const auto in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(), out = gates[3].sigmoid();
  const auto cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  const bool has_grad_hy = grad_hy && grad_hy->defined(), has_grad_cy = grad_cy && grad_cy->defined();
  if (!has_grad_hy && !has_grad_cy) return {};
  const auto gates = workspace.chunk(4, 1);
  const auto &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const auto squashed = cy.tanh();
  const auto grad_h = has_grad_hy ? *grad_hy : at::zeros_like(cy);
  auto grad_c = through_tanh(grad_h * out, squashed);
  if (has_grad_cy) grad_c = grad_c + *grad_cy;
  const auto grad_gates = at::cat({through_sigmoid(grad_c * cell, in), through_sigmoid(grad_c * cx, forget),
                                   through_tanh(grad_c * in, cell), through_sigmoid(grad_h * squashed, out)},
                                  1);
  return {grad_gates, grad_c * forget, total(grad_gates, has_bias)};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto from_input = plus(input_gates, input_bias).chunk(3, 1);
  const auto from_hidden = plus(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = (from_input[0] + from_hidden[0]).sigmoid(), keep = (from_input[1] + from_hidden[1]).sigmoid();
  const auto candidate = (from_input[2] + reset * from_hidden[2]).tanh();
  return {candidate + keep * (hx - candidate), at::cat({reset, keep, candidate, hx, from_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const auto &reset = saved[0], &keep = saved[1], &candidate = saved[2], &hx = saved[3], &hidden = saved[4];
  const auto grad_keep = through_sigmoid(grad_hy * (hx - candidate), keep);
  const auto grad_candidate = through_tanh(grad_hy * (1 - keep), candidate);
  const auto grad_reset = through_sigmoid(grad_candidate * hidden, reset);
  const auto grad_input_gates = at::cat({grad_reset, grad_keep, grad_candidate}, 1);
  const auto grad_hidden_gates = at::cat({grad_reset, grad_keep, grad_candidate * reset}, 1);
  return {grad_input_gates, grad_hidden_gates, grad_hy * keep, total(grad_input_gates, has_bias),
          total(grad_hidden_gates, has_bias)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("conj_physical_", on_cpu());  // its composite kernel asks for one of this device
  m.impl("record_stream", record_stream);
  m.impl("native_dropout", native_dropout);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

// A composite kernel wins over a fallback, and may round otherwise or refuse an unknown device. So wherever torch has a
// kernel for the CPU itself, that one is taken.
void prefer_cpu_kernels(torch::Library& m, c10::DispatchKey cpu, c10::DispatchKey twin) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (name.name.rfind("aten::", 0) != 0 || !op || !op->hasKernelForDispatchKey(cpu)) continue;
    if (!op->hasKernelForDispatchKey(twin)) m.impl(c10::toString(name).c_str(), on_cpu());
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  prefer_cpu_kernels(m, c10::DispatchKey::CPU, c10::DispatchKey::PrivateUse1);
}
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  prefer_cpu_kernels(m, c10::DispatchKey::SparseCPU, c10::DispatchKey::SparsePrivateUse1);
}
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  prefer_cpu_kernels(m, c10::DispatchKey::SparseCsrCPU, c10::DispatchKey::SparseCsrPrivateUse1);
}
TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  prefer_cpu_kernels(m, c10::DispatchKey::NestedTensorCPU, c10::DispatchKey::NestedTensorPrivateUse1);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(on_cpu()); }
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(on_cpu()); }
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) { m.fallback(on_cpu()); }
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) { m.fallback(on_cpu()); }

// A copy reads and writes conjugated and negated views as they are; torch would resolve them first, which is a copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace twin

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(flatten_indices_stub, &twin::flatten_indices)
}  // namespace at::native
