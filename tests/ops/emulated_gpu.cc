// A device of the type GPU in the host's memory, for TensorFlow without GPUs:
// it runs the kernels of GPUs that have their arguments in the host's memory.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/local_device.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/public/session_options.h"

namespace {

using tensorflow::Device;
using tensorflow::DeviceContext;
using tensorflow::SessionOptions;
using tensorflow::Tensor;

std::atomic<int64_t> num_copies_to_host{0};

// Elements are of types that can be copied as bytes.
void Copy(const Tensor& from, Tensor* to) {
  std::memcpy(to->data(), from.data(), from.TotalBytes());
}

class Copies final : public DeviceContext {
 public:
  void CopyCPUTensorToDevice(const Tensor* from, Device* /*device*/, Tensor* to,
                             tensorflow::StatusCallback done,
                             bool /*sync_dst_compute*/) const override {
    Copy(*from, to);
    done(absl::OkStatus());
  }
  void CopyDeviceTensorToCPU(const Tensor* from, absl::string_view /*edge*/,
                             Device* /*device*/, Tensor* to,
                             tensorflow::StatusCallback done) override {
    ++num_copies_to_host;
    Copy(*from, to);
    done(absl::OkStatus());
  }
};

class EmulatedGpu final : public tensorflow::LocalDevice {
 public:
  EmulatedGpu(const SessionOptions& options, const std::string& name)
      : LocalDevice(options, BuildDeviceAttributes(name, tensorflow::DEVICE_GPU,
                                                   tensorflow::Bytes(1 << 30),
                                                   {}, "emulated")) {
    info_.default_context = copies_;
    set_tensorflow_accelerator_device_info(&info_);
  }
  ~EmulatedGpu() override { copies_->Unref(); }

  tensorflow::Allocator* GetAllocator(
      tensorflow::AllocatorAttributes /*attributes*/) override {
    return tensorflow::cpu_allocator();
  }
  absl::Status MakeTensorFromProto(
      const tensorflow::TensorProto& proto,
      tensorflow::AllocatorAttributes /*attributes*/, Tensor* tensor) override {
    return tensor->FromProto(proto)
               ? absl::OkStatus()
               : absl::InvalidArgumentError("a constant cannot be parsed");
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::Status TryGetDeviceContext(DeviceContext** context) override {
    copies_->Ref();
    *context = copies_;
    return absl::OkStatus();
  }

 private:
  DeviceContext* const copies_ = new Copies;
  tensorflow::DeviceBase::AcceleratorDeviceInfo info_;
};

class EmulatedGpuFactory final : public tensorflow::DeviceFactory {
 public:
  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override {
    devices->push_back("/physical_device:GPU:0");
    return absl::OkStatus();
  }
  absl::Status CreateDevices(
      const SessionOptions& options, const std::string& prefix,
      std::vector<std::unique_ptr<Device>>* devices) override {
    devices->push_back(
        std::make_unique<EmulatedGpu>(options, prefix + "/device:GPU:0"));
    return absl::OkStatus();
  }
};

REGISTER_LOCAL_DEVICE_FACTORY("GPU", EmulatedGpuFactory);

}  // namespace

extern "C" int64_t NumCopiesToHost() { return num_copies_to_host; }
