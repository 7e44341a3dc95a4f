#include "tf_syncrep/cc/tf/table_snapshot.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/step_cancellation.h"

namespace tf_syncrep {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;

// The tables of this process of which snapshots are being read. Updates know
// nothing of checkpoints, since they are traced or built before there is one.
// So they look here for the tables that they are about to write to.
class Tables {
 public:
  static Tables& All() {
    static Tables* const all = new Tables;
    return *all;
  }

  void Add(const void* lock_of,
           const std::shared_ptr<TableSnapshot>& snapshot) {
    const MutexLock lock(mu_);
    by_lock_.emplace(lock_of, Entry{snapshot.get(), snapshot});
    num_ = by_lock_.size();
  }

  void Remove(const void* lock_of, const TableSnapshot* snapshot) {
    const MutexLock lock(mu_);
    auto [entry, end] = by_lock_.equal_range(lock_of);
    while (entry != end) {
      entry = entry->second.address == snapshot ? by_lock_.erase(entry)
                                                : std::next(entry);
    }
    num_ = by_lock_.size();
  }

  std::vector<std::shared_ptr<TableSnapshot>> Find(const void* lock_of) {
    std::vector<std::shared_ptr<TableSnapshot>> found;
    if (num_.load(std::memory_order_acquire) == 0) {
      return found;
    }
    const MutexLock lock(mu_);
    const auto [begin, end] = by_lock_.equal_range(lock_of);
    for (auto entry = begin; entry != end; ++entry) {
      if (auto snapshot = entry->second.snapshot.lock()) {
        found.push_back(std::move(snapshot));
      }
    }
    return found;
  }

 private:
  struct Entry {
    const TableSnapshot* address;  // It may be being destroyed.
    std::weak_ptr<TableSnapshot> snapshot;
  };

  Mutex mu_;
  // The key is the lock of the first array, which both kinds of variables have.
  std::multimap<const void*, Entry> by_lock_ TF_SYNCREP_GUARDED_BY(mu_);
  std::atomic<size_t> num_{0};
};

}  // namespace

class TableSnapshot::Locks {
 public:
  explicit Locks(const std::vector<VariableMutex*>& mutexes)
      : mutexes_(mutexes) {
    for (VariableMutex* mutex : mutexes_) {
      mutex->lock_shared();
    }
  }
  ~Locks() {
    for (VariableMutex* mutex : mutexes_) {
      mutex->unlock_shared();
    }
  }
  Locks(const Locks&) = delete;
  Locks& operator=(const Locks&) = delete;

 private:
  const std::vector<VariableMutex*>& mutexes_;
};

absl::StatusOr<std::shared_ptr<TableSnapshot>> TableSnapshot::Make(
    std::vector<HeldVariable> arrays, std::shared_ptr<KeptBytes> kept) {
  std::shared_ptr<TableSnapshot> made(new TableSnapshot(std::move(arrays)));
  for (const HeldVariable& array : made->arrays_) {
    made->mutexes_.push_back(array.mu());
  }
  std::sort(made->mutexes_.begin(), made->mutexes_.end());
  made->mutexes_.erase(
      std::unique(made->mutexes_.begin(), made->mutexes_.end()),
      made->mutexes_.end());
  const Locks locks(made->mutexes_);
  int64_t num_rows = -1;
  std::vector<int64_t> row_bytes;
  for (HeldVariable& array : made->arrays_) {
    const Tensor& tensor = *array.tensor();
    const bool fits = tensor.IsInitialized() && tensor.dims() > 0 &&
                      tensorflow::DataTypeCanUseMemcpy(tensor.dtype()) &&
                      (num_rows < 0 || tensor.dim_size(0) == num_rows);
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrCat(
          "The arrays of a table must be initialized, and have equally many "
          "rows of numbers. Received: ",
          array.DebugString(), " beside ", num_rows, " rows"));
    }
    num_rows = tensor.dim_size(0);
    TensorShape row_shape = tensor.shape();
    // Where there are no rows, a row may have any size.
    TF_RETURN_IF_ERROR(row_shape.RemoveDimWithStatus(0));
    row_bytes.push_back(row_shape.num_elements() *
                        tensorflow::DataTypeSize(tensor.dtype()));
    made->all_row_bytes_ += row_bytes.back();
    made->dtypes_.push_back(tensor.dtype());
    made->row_shapes_.push_back(std::move(row_shape));
  }
  made->kept_ = std::move(kept);
  num_rows = std::max<int64_t>(num_rows, 0);
  try {
    made->rows_ = std::make_unique<RowSnapshot>(num_rows, std::move(row_bytes),
                                                made->kept_.get());
  } catch (const std::bad_alloc&) {
    return OutOfMemory("which rows of a table were kept", num_rows / 512);
  }
  return made;
}

TableSnapshot::~TableSnapshot() {
  if (!arrays_.empty()) {
    Tables::All().Remove(arrays_[0].mu(), this);
  }
}

std::vector<std::shared_ptr<TableSnapshot>> TableSnapshot::Find(
    const void* lock_of) {
  return Tables::All().Find(lock_of);
}

void TableSnapshot::Register(const std::shared_ptr<TableSnapshot>& snapshot) {
  Tables::All().Add(snapshot->arrays_[0].mu(), snapshot);
}

absl::StatusOr<std::vector<const char*>> TableSnapshot::Data() {
  std::vector<const char*> data;
  for (size_t i = 0; i < arrays_.size(); ++i) {
    const Tensor& tensor = *arrays_[i].tensor();
    TensorShape row_shape = tensor.shape();
    if (row_shape.dims() > 0 && row_shape.dim_size(0) == num_rows()) {
      TF_RETURN_IF_ERROR(row_shape.RemoveDimWithStatus(0));
      if (tensor.IsInitialized() && tensor.dtype() == dtypes_[i] &&
          row_shape == row_shapes_[i]) {
        data.push_back(static_cast<const char*>(tensor.data()));
        continue;
      }
    }
    return absl::FailedPreconditionError(
        absl::StrCat("A variable got another shape while a checkpoint of it "
                     "was being written: ",
                     arrays_[i].DebugString()));
  }
  return data;
}

template <typename Row>
absl::Status TableSnapshot::Keep(const Row* rows, int64_t num,
                                 const std::function<bool()>& cancelled) {
  for (int64_t kept = 0; !rows_->IsRead();) {
    {
      const Locks locks(mutexes_);
      absl::StatusOr<std::vector<const char*>> data = Data();
      if (data.ok()) {
        kept =
            rows_->Keep(*data, rows, kept, rows == nullptr ? num_rows() : num);
      } else {
        kept_->GiveUp(KeptBytes::Reason::kNewShape);
      }
    }
    if (kept >= (rows == nullptr ? num_rows() : num)) {
      break;
    }
    if (kept_->gave_up() != KeptBytes::Reason::kNone) {
      // This update gave the checkpoint up, or one of another table.
      Abandon();
      break;
    }
    if (!kept_->WaitForRoom(rows_->most_bytes(), cancelled)) {
      if (cancelled()) {
        return StepCancelled();
      }
      kept_->GiveUp(KeptBytes::Reason::kNoProgress);
      Abandon();
    }
  }
  return absl::OkStatus();
}

template absl::Status TableSnapshot::Keep(const int32_t*, int64_t,
                                          const std::function<bool()>&);
template absl::Status TableSnapshot::Keep(const int64_t*, int64_t,
                                          const std::function<bool()>&);

template <typename Visit>
absl::Status TableSnapshot::VisitData(const Visit& visit) {
  const MutexLock reading(reading_);
  if (rows_->IsRead()) {
    return absl::CancelledError("The checkpoint was given up.");
  }
  const Locks locks(mutexes_);
  absl::StatusOr<std::vector<const char*>> data = Data();
  if (!data.ok()) {
    return data.status();
  }
  visit(*data);
  return absl::OkStatus();
}

absl::Status TableSnapshot::SkipFree(int64_t num, int64_t uses,
                                     int64_t* skipped) {
  return VisitData([&](const std::vector<const char*>& data) {
    *skipped += rows_->SkipFree(data, num, uses);
  });
}

absl::Status TableSnapshot::Read(int64_t num, int64_t uses,
                                 const std::vector<char*>& out) {
  return VisitData([&](const std::vector<const char*>& data) {
    rows_->Read(data, num, uses, out);
  });
}

void TableSnapshot::Abandon() {
  rows_->Abandon();
  Tables::All().Remove(arrays_[0].mu(), this);
  // A Read() that has begun before is waited for; later ones see that it was
  // abandoned.
  const MutexLock wait(reading_);
}

}  // namespace tf_syncrep
