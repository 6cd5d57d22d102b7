// Twin tensors seen by the CPU, and CPU results brought back.
#include "twin.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>

namespace twin {
namespace {

using at::SparseCsrTensorImpl;
using at::SparseTensorImpl;
using at::native::NestedTensorImpl;
using c10::DispatchKey;

bool is_strided(const at::Tensor& t) { return t.layout() == c10::kStrided && !t.is_nested(); }
bool is_compressed(const at::Tensor& t) { return t.unsafeGetTensorImpl()->key_set().has(DispatchKey::SparseCsr); }

template <typename Impl>
Impl* impl_of(const at::Tensor& t) {
  return static_cast<Impl*>(t.unsafeGetTensorImpl());
}

c10::DispatchKeySet key(const c10::Device& device, DispatchKey on_cpu, DispatchKey on_twin) {
  return c10::DispatchKeySet(device.is_cpu() ? on_cpu : on_twin);
}

bool same_place(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset();
}

void place(const at::Tensor& t, const at::Tensor& like) {
  t.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
}

void dress(const at::Tensor& t, const at::Tensor& like) {
  place(t, like);
  auto* impl = t.unsafeGetTensorImpl();
  impl->_set_conj(like.is_conj());
  impl->_set_neg(like.is_neg());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
}

at::Tensor strided_over(c10::Storage storage, const at::Tensor& like) {
  auto keys = key(storage.device(), DispatchKey::CPU, DispatchKey::PrivateUse1);
  if (like._is_zerotensor()) keys = keys.add(DispatchKey::ZeroTensor);
  auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  dress(t, like);
  return t;
}

// Takes the keys from its base: in inference mode, a view of an ordinary tensor is an ordinary tensor.
at::Tensor view_of(const at::Tensor& base, const at::Tensor& like) {
  auto t = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                                    base.key_set(), like.dtype());
  dress(t, like);
  return t;
}

void fill(const at::Tensor& coo, const SparseTensorImpl& like, const at::Tensor& indices, const at::Tensor& values) {
  auto* impl = impl_of<SparseTensorImpl>(coo);
  impl->raw_resize_(like.sparse_dim(), like.dense_dim(), like.sizes());
  impl->set_indices_and_values_unsafe(indices, values);
  impl->set_coalesced(like.coalesced());
}

at::Tensor coo_over(const at::Tensor& indices, const at::Tensor& values, const SparseTensorImpl& like) {
  const c10::DeviceGuard guard(values.device());  // a new sparse tensor takes its index from the current device
  const auto keys = key(values.device(), DispatchKey::SparseCPU, DispatchKey::SparsePrivateUse1);
  auto t = at::detail::make_tensor<SparseTensorImpl>(keys, values.dtype());
  fill(t, like, indices, values);
  return t;
}

at::Tensor compressed_over(const at::Tensor& compressed, const at::Tensor& plain, const at::Tensor& values,
                           const at::Tensor& like) {
  const auto keys = key(values.device(), DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrPrivateUse1);
  auto t = at::detail::make_tensor<SparseCsrTensorImpl>(keys, values.device(), like.layout(), values.dtype());
  impl_of<SparseCsrTensorImpl>(t)->set_member_tensors(compressed, plain, values, like.sizes());
  return t;
}

at::Tensor nested_over(const at::Tensor& buffer, const NestedTensorImpl& like) {
  return at::detail::make_tensor<NestedTensorImpl>(buffer, like.get_nested_sizes(), like.get_nested_strides(),
                                                   like.get_storage_offsets());
}

// The same kind of tensor over other parts; `move` says what becomes of each strided part, or of a storage.
template <typename Move>
at::Tensor rebuilt(const at::Tensor& t, Move&& move) {
  if (t.is_nested()) {
    const auto& nested = *impl_of<NestedTensorImpl>(t);
    return nested_over(move(nested.get_unsafe_storage_as_tensor()), nested);
  }
  if (t.is_sparse()) {
    const auto& coo = *impl_of<SparseTensorImpl>(t);
    return coo_over(move(coo.indices()), move(coo.values()), coo);
  }
  if (is_compressed(t)) {
    const auto& csr = *impl_of<SparseCsrTensorImpl>(t);
    return compressed_over(move(csr.compressed_indices()), move(csr.plain_indices()), move(csr.values()), t);
  }
  return strided_over(move(t.storage()), t);
}

bool same(const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); }
bool same(const c10::Storage& a, const c10::Storage& b) {
  return a.unsafeGetStorageImpl() == b.unsafeGetStorageImpl();
}

template <typename T>
const T* lent_for(const std::vector<std::pair<T, T>>& pairs, const T& original) {
  for (const auto& pair : pairs)
    if (same(pair.first, original)) return &pair.second;
  return nullptr;
}

template <typename T>
const T* original_of(const std::vector<std::pair<T, T>>& pairs, const T& lent) {
  for (const auto& pair : pairs)
    if (same(pair.second, lent)) return &pair.first;
  return nullptr;
}

c10::Storage storage_over(c10::DataPtr data, size_t bytes, c10::Allocator* allocator) {
  return {c10::Storage::use_byte_size_t(), bytes, std::move(data), allocator, /*resizable=*/true};
}

c10::Storage on_cpu(const c10::Storage& storage) {
  auto* kept_alive = new c10::Storage(storage);
  auto drop = [](void* context) { delete static_cast<c10::Storage*>(context); };
  c10::DataPtr same_bytes(storage.mutable_data(), kept_alive, drop, c10::Device(c10::kCPU));
  return storage_over(std::move(same_bytes), storage.nbytes(), c10::GetAllocator(c10::kCPU));
}

c10::DataPtr copied_to(const c10::Device& device, const c10::Storage& storage) {
  if (!storage.data()) return {nullptr, device};
  auto fresh = allocate_on(device, storage.nbytes());
  if (storage.nbytes()) std::memcpy(fresh.get(), storage.data(), storage.nbytes());
  return fresh;
}

}  // namespace

c10::Storage Loan::lend(const c10::Storage& storage) {
  if (const auto* known = lent_for(storages_, storage)) return *known;
  if (storage.device().type() == kTwin && !home_) home_ = storage.device();
  auto lent = storage.device().is_cpu() ? storage : on_cpu(storage);
  storages_.emplace_back(storage, lent);
  return lent;
}

at::Tensor Loan::lend(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (const auto* known = lent_for(tensors_, tensor)) return *known;
  if (tensor.is_nested()) keep_sizes(tensor);
  auto lent = tensor.is_cpu() ? tensor : rebuilt(tensor, [this](const auto& part) { return lend(part); });
  auto *from = tensor.unsafeGetTensorImpl(), *to = lent.unsafeGetTensorImpl();
  to->set_allow_tensor_metadata_change(from->allow_tensor_metadata_change());
  if (from->requires_grad()) to->set_requires_grad(true);  // some kernels ask, to keep what a backward will need
  tensors_.emplace_back(tensor, lent);
  return lent;
}

// They live on the CPU with either device, and have to come back as they went.
void Loan::keep_sizes(const at::Tensor& nested) {
  const auto& impl = *impl_of<NestedTensorImpl>(nested);
  for (const auto& part : {impl.get_nested_sizes(), impl.get_nested_strides(), impl.get_storage_offsets()}) lend(part);
}

c10::Storage Loan::bring_home(const c10::Storage& storage) {
  if (const auto* known = original_of(storages_, storage)) return *known;
  if (home_.value().is_cpu()) return storage;
  auto fresh = storage_over(copied_to(home_.value(), storage), storage.nbytes(), allocator());
  storages_.emplace_back(fresh, storage);
  return fresh;
}

at::Tensor Loan::bring_home(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (const auto* known = original_of(tensors_, tensor)) return *known;
  if (is_strided(tensor))
    for (const auto& [original, lent] : tensors_)
      if (is_strided(lent) && same(lent.storage(), tensor.storage())) return view_of(original, tensor);
  return rebuilt(tensor, [this](const auto& part) { return bring_home(part); });
}

void Loan::settle() {
  for (const auto& [original, lent] : storages_) settle(original, lent);
  for (const auto& [original, lent] : tensors_) settle(original, lent);
}

void Loan::settle(const c10::Storage& original, const c10::Storage& lent) {
  if (original.data() == lent.data() && original.nbytes() == lent.nbytes()) return;
  auto* impl = original.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(copied_to(original.device(), lent));
  impl->set_nbytes(lent.nbytes());
}

void Loan::settle(const at::Tensor& original, const at::Tensor& lent) {
  if (original.is_cpu() || original.is_nested()) return;  // the sizes of a nested tensor never change
  if (original.is_sparse()) return settle_coo(original, lent);
  if (is_compressed(original)) return settle_compressed(original, lent);
  const auto storage = bring_home(lent.storage());
  if (!same(storage, original.storage())) original.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  if (!same_place(original, lent)) place(original, lent);
}

void Loan::settle_coo(const at::Tensor& original, const at::Tensor& lent) {
  const auto &before = *impl_of<SparseTensorImpl>(original), &after = *impl_of<SparseTensorImpl>(lent);
  const auto indices = bring_home(after.indices()), values = bring_home(after.values());
  const bool same_parts = same(before.indices(), indices) && same(before.values(), values);
  if (same_parts && before.coalesced() == after.coalesced() && original.sizes() == lent.sizes()) return;
  fill(original, after, indices, values);
}

void Loan::settle_compressed(const at::Tensor& original, const at::Tensor& lent) {
  const auto &before = *impl_of<SparseCsrTensorImpl>(original), &after = *impl_of<SparseCsrTensorImpl>(lent);
  const auto compressed = bring_home(after.compressed_indices()), plain = bring_home(after.plain_indices());
  const auto values = bring_home(after.values());
  const bool same_indices = same(before.compressed_indices(), compressed) && same(before.plain_indices(), plain);
  if (same_indices && same(before.values(), values) && original.sizes() == lent.sizes()) return;
  impl_of<SparseCsrTensorImpl>(original)->set_member_tensors(compressed, plain, values, lent.sizes());
}

}  // namespace twin
