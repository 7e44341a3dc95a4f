#include "tf_syncrep/cc/kernels/table_slots.h"

#include <algorithm>
#include <string>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/tf/scalars.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataType;
using tensorflow::OpInputList;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

constexpr int kFirstSlot = 1;
constexpr int kFirstSlotInput = 5;

template <typename T>
void FillRow(const Tensor& slot, int64_t row, double value) {
  const int64_t size = slot.NumElements() / slot.dim_size(0);
  T* const begin = Data<T>(slot) + row * size;
  std::fill(begin, begin + size, Narrow<T>(static_cast<SlotType<T>>(value)));
}

// Sets a row of a slot to a number. AddTo() has checked the slot's type.
void ResetRow(const Tensor& slot, int64_t row, double value) {
  switch (slot.dtype()) {
    case tensorflow::DT_HALF:
      return FillRow<Half>(slot, row, value);
    case tensorflow::DT_BFLOAT16:
      return FillRow<BFloat16>(slot, row, value);
    case tensorflow::DT_FLOAT:
      return FillRow<float>(slot, row, value);
    default:
      return FillRow<double>(slot, row, value);
  }
}

}  // namespace

absl::Status TableSlots::Read(tensorflow::OpKernelConstruction* ctx) {
  std::vector<int64_t> initials;
  TF_RETURN_IF_ERROR(ctx->GetAttr("slot_initials", &initials));
  for (const int64_t bits : initials) {
    initials_.push_back(absl::bit_cast<double>(bits));
  }
  return absl::OkStatus();
}

absl::Status TableSlots::AddTo(OpKernelContext* ctx, DataType dtype,
                               TablePart* part) const {
  part->Add(kVectorsInput, "vectors", dtype);
  OpInputList slots;
  TF_RETURN_IF_ERROR(ctx->input_list("slots", &slots));
  if (static_cast<int>(initials_.size()) != slots.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot_initials must be of ", slots.size(),
                     " slots, but are of ", initials_.size()));
  }
  for (int i = 0; i < slots.size(); ++i) {
    const std::string name = absl::StrCat("slots[", i, "]");
    TF_RETURN_IF_ERROR(CheckScalar(slots[i], name));
    tensorflow::core::RefCountPtr<tensorflow::Var> slot;
    TF_RETURN_IF_ERROR(tensorflow::LookupResource(
        ctx, tensorflow::HandleFromInput(ctx, kFirstSlotInput + i), &slot));
    DataType slot_dtype;
    {
      tensorflow::tf_shared_lock lock(*slot->mu());
      slot_dtype = slot->tensor()->dtype();
    }
    if (slot_dtype != tensorflow::DT_HALF &&
        slot_dtype != tensorflow::DT_BFLOAT16 &&
        slot_dtype != tensorflow::DT_FLOAT &&
        slot_dtype != tensorflow::DT_DOUBLE) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " must be of a floating point type, but is of ",
                       tensorflow::DataTypeString(slot_dtype)));
    }
    part->Add(kFirstSlotInput + i, name, slot_dtype);
  }
  return absl::OkStatus();
}

void TableSlots::Reset(const TablePart& part, int64_t row) const {
  for (size_t k = 0; k < initials_.size(); ++k) {
    ResetRow(part.tensor(kFirstSlot + static_cast<int>(k)), row, initials_[k]);
  }
}

}  // namespace tf_syncrep
