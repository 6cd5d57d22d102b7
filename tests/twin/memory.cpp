// The device itself: memory with an account per device, the current device, random generators.
#include "twin.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

namespace twin {
namespace {

constexpr int64_t kNoLimit = -1;
constexpr int64_t kRoomWithoutLimit = int64_t{1} << 40;
constexpr size_t kAlignment = 64;  // as on the CPU: vectorised kernels may round differently on other alignments

thread_local c10::DeviceIndex current = 0;

void check_index(int64_t index) {
  TORCH_CHECK(index >= 0 && index < kDevices, "twin: no device with index ", index, ", there are ", int(kDevices));
}

// Springs once, at the n-th step from the time it was set.
class Trap {
 public:
  void set(int64_t steps) { left_ = steps; }
  bool springs() { return left_ > 0 && --left_ == 0; }

 private:
  int64_t left_ = 0;
};

[[noreturn]] void raise_out_of_memory(c10::DeviceIndex index, size_t bytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "twin:", int(index), " is out of memory: asked for ", bytes, " bytes");
}

class Ledger {
 public:
  void charge(c10::DeviceIndex index, size_t bytes) {
    std::lock_guard lock(mutex_);
    auto& account = accounts_.at(index);
    if (trap_.springs() || exceeds_limit(account, bytes)) raise_out_of_memory(index, bytes);
    account.bytes.increase(bytes);
    ++allocations_;
  }
  void refund(c10::DeviceIndex index, size_t bytes) {
    std::lock_guard lock(mutex_);
    accounts_.at(index).bytes.decrease(bytes);
  }
  void limit(c10::DeviceIndex index, int64_t bytes) {
    std::lock_guard lock(mutex_);
    accounts_.at(index).limit = bytes;
  }
  void fail_at(int64_t steps) {
    std::lock_guard lock(mutex_);
    trap_.set(steps);
  }
  int64_t allocations() {
    std::lock_guard lock(mutex_);
    return allocations_;
  }
  c10::CachingAllocator::Stat bytes(c10::DeviceIndex index) {
    std::lock_guard lock(mutex_);
    return accounts_.at(index).bytes;
  }
  void reset_peak(c10::DeviceIndex index) {
    std::lock_guard lock(mutex_);
    accounts_.at(index).bytes.reset_peak();
  }
  void reset_accumulated(c10::DeviceIndex index) {
    std::lock_guard lock(mutex_);
    accounts_.at(index).bytes.reset_accumulated();
  }
  std::pair<size_t, size_t> free_and_total(c10::DeviceIndex index) {
    std::lock_guard lock(mutex_);
    const auto& account = accounts_.at(index);
    const auto total = account.limit == kNoLimit ? kRoomWithoutLimit : account.limit;
    return {std::max<int64_t>(total - account.bytes.current, 0), total};
  }

 private:
  struct Account {
    c10::CachingAllocator::Stat bytes;
    int64_t limit = kNoLimit;
  };
  static bool exceeds_limit(const Account& account, size_t bytes) {
    return account.limit != kNoLimit && account.bytes.current + static_cast<int64_t>(bytes) > account.limit;
  }

  std::mutex mutex_;
  std::array<Account, kDevices> accounts_;
  int64_t allocations_ = 0;
  Trap trap_;
};

// Never destroyed: tensors may be freed while the process ends.
Ledger& ledger() {
  static auto& instance = *new Ledger;
  return instance;
}

struct Block {
  void* data;
  size_t bytes;
  c10::DeviceIndex index;
};

void release(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  std::free(block->data);
  ledger().refund(block->index, block->bytes);
}

struct TwinAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override { return allocate_on({kTwin, current}, bytes); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0] = stats.reserved_bytes[0] = stats.active_bytes[0] = ledger().bytes(index);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override { ledger().reset_accumulated(index); }
  void resetPeakStats(c10::DeviceIndex index) override { ledger().reset_peak(index); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override { return ledger().free_and_total(index); }
};

TwinAllocator twin_allocator;
REGISTER_ALLOCATOR(kTwin, &twin_allocator);

// Pinned memory is ordinary CPU memory that remembers it was asked for.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto data = c10::GetAllocator(c10::kCPU)->allocate(bytes);
    auto* pinned = new Pinned{this, std::move(data)};
    auto* start = static_cast<const char*>(pinned->data.get());
    std::lock_guard lock(mutex_);
    if (start) ends_[start] = start + bytes;
    return {pinned->data.get(), pinned, &unpin, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool holds(const void* address) {
    std::lock_guard lock(mutex_);
    auto after = ends_.upper_bound(static_cast<const char*>(address));
    return after != ends_.begin() && address < std::prev(after)->second;
  }

 private:
  struct Pinned {
    PinnedAllocator* allocator;
    c10::DataPtr data;
  };
  static void unpin(void* context) {
    std::unique_ptr<Pinned> pinned(static_cast<Pinned*>(context));
    std::lock_guard lock(pinned->allocator->mutex_);
    pinned->allocator->ends_.erase(static_cast<const char*>(pinned->data.get()));
  }

  std::mutex mutex_;
  std::map<const char*, const char*> ends_;
};

PinnedAllocator& pinned_allocator() {
  static auto& instance = *new PinnedAllocator;
  return instance;
}

// All work is done by the time a call returns, so every stream is the default one and events have always happened.
struct TwinGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kTwin; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Device getDevice() const override { return {kTwin, current}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto previous = getDevice();
    setDevice(device);
    return previous;
  }
  void setDevice(c10::Device device) const override {
    check_index(device.index());
    current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, TwinGuard);

// Kernels that run on the CPU insist on a CPU generator, so a twin generator keeps one inside.
class TwinGenerator final : public c10::GeneratorImpl {
 public:
  explicit TwinGenerator(c10::DeviceIndex index, at::Generator engine = at::detail::createCPUGenerator())
      : GeneratorImpl({kTwin, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), engine_(std::move(engine)) {}

  const at::Generator& engine() const { return engine_; }
  void set_current_seed(uint64_t seed) override { engine_.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { engine_.set_offset(offset); }
  uint64_t get_offset() const override { return engine_.get_offset(); }
  uint64_t current_seed() const override { return engine_.current_seed(); }
  uint64_t seed() override { return engine_.seed(); }
  void set_state(const c10::TensorImpl& state) override { engine_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return engine_.unsafeGetGeneratorImpl()->get_state();
  }

 private:
  TwinGenerator* clone_impl() const override { return new TwinGenerator(device().index(), engine_.clone()); }

  at::Generator engine_;
};

c10::DeviceIndex index_or_current(c10::DeviceIndex index) { return index < 0 ? current : index; }

struct TwinHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* data) const override { return pinned_allocator().holds(data); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<TwinGenerator>(index_or_current(index));
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto fresh = allocate_on(storage.device(), bytes);
    if (const auto kept = std::min(bytes, storage.nbytes())) std::memcpy(fresh.get(), storage.data(), kept);
    auto* impl = storage.unsafeGetStorageImpl();
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->set_nbytes(bytes);
  }
};

struct CopyCounter {
  std::mutex mutex;
  Trap trap;
} copies;

void fail_copy_at(int64_t steps) {
  std::lock_guard lock(copies.mutex);
  copies.trap.set(steps);
}

void register_hooks() {
  static TwinHooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

}  // namespace

c10::Allocator* allocator() { return &twin_allocator; }

// Zero bytes take no memory, so they are neither counted nor made to fail.
c10::DataPtr allocate_on(c10::Device device, size_t bytes) {
  if (bytes == 0) return {nullptr, device};
  ledger().charge(device.index(), bytes);
  void* data = nullptr;
  if (posix_memalign(&data, kAlignment, bytes) != 0) {
    ledger().refund(device.index(), bytes);
    raise_out_of_memory(device.index(), bytes);
  }
  return {data, new Block{data, bytes, device.index()}, &release, device};
}

void account_for_copy() {
  std::lock_guard lock(copies.mutex);
  TORCH_CHECK(!copies.trap.springs(), "twin: copy failed");
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto& generators = *new std::array<at::Generator, kDevices>{at::make_generator<TwinGenerator>(0),
                                                                     at::make_generator<TwinGenerator>(1)};
  return generators.at(index_or_current(index));
}

at::Generator engine_of(const at::Generator& generator) {
  if (generator.device().type() != kTwin) return generator;
  return static_cast<TwinGenerator*>(generator.unsafeGetGeneratorImpl())->engine();
}

}  // namespace twin

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace twin;
  using Index = c10::DeviceIndex;
  m.def("register_hooks", &register_hooks);
  m.def("current_device", [] { return int(current); });
  m.def("set_device", [](Index index) { current = index; });
  m.def("default_generator", [](Index index) { return default_generator(index); });
  m.def("bytes_in_use", [](Index index) { return ledger().bytes(index).current; });
  m.def("free_and_total", [](Index index) { return ledger().free_and_total(index); });
  m.def("allocations", [] { return ledger().allocations(); });
  m.def("limit", [](Index index, int64_t bytes) { ledger().limit(index, bytes); });
  m.def("fail_at", [](int64_t steps) { ledger().fail_at(steps); });
  m.def("fail_copy_at", &fail_copy_at);
}
