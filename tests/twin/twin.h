// A second device in ordinary memory ("twin:0", "twin:1"): real bytes elsewhere, on a machine without an accelerator.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <optional>
#include <utility>
#include <vector>

namespace twin {

constexpr auto kTwin = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;

c10::Allocator* allocator();
c10::DataPtr allocate_on(c10::Device device, size_t bytes);

// Counts one copy; raises when it is the one a test asked to fail.
void account_for_copy();

const at::Generator& default_generator(c10::DeviceIndex index);
// The CPU generator that produces a twin generator's numbers.
at::Generator engine_of(const at::Generator& generator);

// Twin tensors lent to the CPU for one operation: CPU tensors over the same bytes, so that kernels write in place and
// views alias. What the CPU hands back becomes a twin tensor again: the original, a view of it, or a fresh copy.
class Loan {
 public:
  explicit Loan(std::optional<c10::Device> home = std::nullopt) : home_(home) {}

  const std::optional<c10::Device>& home() const { return home_; }
  at::Tensor lend(const at::Tensor& tensor);
  c10::Storage lend(const c10::Storage& storage);
  // Carries what the operation did to lent tensors themselves (resize_, set_, out=) over to the originals.
  void settle();
  at::Tensor bring_home(const at::Tensor& tensor);

 private:
  void keep_sizes(const at::Tensor& nested);
  c10::Storage bring_home(const c10::Storage& storage);
  void settle(const c10::Storage& original, const c10::Storage& lent);
  void settle(const at::Tensor& original, const at::Tensor& lent);
  void settle_coo(const at::Tensor& original, const at::Tensor& lent);
  void settle_compressed(const at::Tensor& original, const at::Tensor& lent);

  std::optional<c10::Device> home_;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;       // original, lent
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;  // on the twin, on the CPU
};

}  // namespace twin
