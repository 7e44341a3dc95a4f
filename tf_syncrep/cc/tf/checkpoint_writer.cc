#include "tf_syncrep/cc/tf/checkpoint_writer.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tf_syncrep/cc/lib/detached_thread.h"
#include "tf_syncrep/cc/lib/rows/row_fingerprint.h"
#include "tf_syncrep/cc/lib/zero_pages.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::BundleWriter;
using tensorflow::Env;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// How much of a table's rows is written at a time. Beside the tables a
// checkpoint takes only a few times this much memory, and the file's buffer of
// 8 MiB.
constexpr int64_t kChunkBytes = 8 << 20;

// How much is copied at a time. Meanwhile the variables are locked: so briefly
// that this thread is seldom preempted while it holds the lock, which would
// hold up updates too.
constexpr int64_t kLockedBytes = 128 << 10;

// If the bytes per second are limited, chunks are small enough for an even
// flow.
constexpr double kTurnsPerSec = 10;

// The niceness of the thread that writes: if processors are scarce, it gets a
// tenth of the time that an update's thread gets.
constexpr int kNice = 10;

// The fingerprint of a free row, whatever its contents. It is that of rows that
// were never used, which take no memory.
constexpr uint64_t kFree = 0;

constexpr char kThreadName[] = "tfs_checkpoint";

// How long a caller waits at most for the thread that was told to end.
constexpr KeptBytes::Seconds kLongestWait(10);

std::chrono::steady_clock::time_point After(
    std::chrono::steady_clock::time_point begin, KeptBytes::Seconds seconds) {
  return begin +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             seconds);
}

void BeNice() {
  // On Linux this concerns only this thread. If it is refused, no harm is done.
  static_cast<void>(
      setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice));
}

char* Elements(const Tensor& tensor) {
  return static_cast<char*>(tensor.data());
}

// Returns whether none of these numbers has all bits of `exponent` set, as NaN
// and infinities have.
template <typename Bits>
bool AreFinite(const char* numbers, int64_t bytes, Bits exponent) {
  Bits found = 0;
  for (int64_t i = 0; i < bytes; i += sizeof(Bits)) {
    Bits number;
    std::memcpy(&number, numbers + i, sizeof(number));
    found |= static_cast<Bits>((number & exponent) == exponent);
  }
  return found == 0;
}

bool AreFinite(tensorflow::DataType dtype, const char* numbers, int64_t bytes) {
  switch (dtype) {
    case tensorflow::DT_HALF:
      return AreFinite<uint16_t>(numbers, bytes, 0x7c00);
    case tensorflow::DT_BFLOAT16:
      return AreFinite<uint16_t>(numbers, bytes, 0x7f80);
    case tensorflow::DT_FLOAT:
      return AreFinite<uint32_t>(numbers, bytes, 0x7f800000);
    case tensorflow::DT_DOUBLE:
      return AreFinite<uint64_t>(numbers, bytes, 0x7ff0000000000000);
    default:
      return true;
  }
}

absl::Status GaveUp(const KeptBytes& kept) {
  switch (kept.gave_up()) {
    case KeptBytes::Reason::kNoProgress:
      return absl::DeadlineExceededError(
          "Nothing could be written to the files for so long that training "
          "went on, and this checkpoint was given up.");
    case KeptBytes::Reason::kOutOfMemory:
      return absl::ResourceExhaustedError(
          "There was no memory to keep rows that updates overwrote before they "
          "were written, and this checkpoint was given up.");
    case KeptBytes::Reason::kNewShape:
      return absl::FailedPreconditionError(
          "A variable got another shape while a checkpoint of it was being "
          "written, and this checkpoint was given up.");
    case KeptBytes::Reason::kNone:
      break;
  }
  return absl::OkStatus();
}

// Returns the first `rows` rows, without a copy. If `parted`, they have one
// more dimension after the first one.
Tensor Rows(const Tensor& tensor, int64_t rows, bool parted) {
  Tensor some = tensor.Slice(0, rows);
  if (parted) {
    TensorShape shape = some.shape();
    shape.InsertDim(1, 1);
    Tensor with_dim(some.dtype());
    // This cannot fail, since the number of elements is the same.
    static_cast<void>(with_dim.CopyFrom(some, shape));
    return with_dim;
  }
  return some;
}

}  // namespace

// All writers of this process that have written for an owner.
class CheckpointWriter::Writers {
 public:
  static Writers& All() {
    static Writers* const all = new Writers;
    return *all;
  }

  void Add(const std::shared_ptr<CheckpointWriter>& writer) {
    const MutexLock lock(mu_);
    writers_[writer.get()] = writer;
  }

  std::vector<std::shared_ptr<CheckpointWriter>> Find() {
    std::vector<std::shared_ptr<CheckpointWriter>> found;
    const MutexLock lock(mu_);
    for (auto entry = writers_.begin(); entry != writers_.end();) {
      if (auto writer = entry->second.lock()) {
        found.push_back(std::move(writer));
        ++entry;
      } else {
        entry = writers_.erase(entry);
      }
    }
    return found;
  }

 private:
  Mutex mu_;  // no other lock is taken under it
  std::map<const CheckpointWriter*, std::weak_ptr<CheckpointWriter>> writers_
      TF_SYNCREP_GUARDED_BY(mu_);
};

class CheckpointWriter::Share {
 public:
  Share(CheckpointWriter* writer, BundleWriter* bundle, TableSnapshot* table)
      : writer_(writer), bundle_(bundle), table_(table) {
    const int64_t row_bytes = std::max<int64_t>(1, table->all_row_bytes());
    chunk_rows_ = std::clamp<int64_t>(writer->ChunkBytes() / row_bytes, 1,
                                      std::max<int64_t>(1, table->num_rows()));
    for (size_t i = 0; i < table->num_arrays(); ++i) {
      TensorShape shape = table->row_shape(static_cast<int>(i));
      shape.InsertDim(0, chunk_rows_);
      chunk_.emplace_back(table->dtype(static_cast<int>(i)), shape);
      if (!chunk_.back().IsInitialized()) {
        // Other allocations here throw as well: see Run().
        throw std::bad_alloc();
      }
      out_.push_back(Elements(chunk_.back()));
      row_bytes_.push_back(static_cast<int64_t>(chunk_.back().TotalBytes()) /
                           chunk_rows_);
    }
  }

  // Writes a piece. `fingerprints`, unless null, are those of the piece's rows,
  // and are updated. With `changed_only`, rows whose fingerprint is the same as
  // before are left out. Tables that grow are always written like this: rows in
  // use, as if all rows had been free before.
  absl::Status Write(const TablePiece& piece, uint64_t* fingerprints,
                     bool changed_only) {
    const bool by_row = changed_only || piece.uses >= 0;
    int64_t chunk = 0;
    int64_t row = 0;
    while (true) {
      if (piece.uses >= 0) {
        TF_RETURN_IF_ERROR(
            SkipFree(piece, changed_only ? fingerprints : nullptr, &row));
      }
      if (row == piece.num_rows) {
        break;
      }
      if (!writer_->AwaitTurn()) {
        return absl::CancelledError("The checkpoint was cancelled.");
      }
      const int64_t num = std::min(chunk_rows_, piece.num_rows - row);
      TF_RETURN_IF_ERROR(Read(piece, num));
      uint64_t* const prints =
          fingerprints == nullptr ? nullptr : fingerprints + row;
      TF_RETURN_IF_ERROR(by_row ? WriteChanged(piece, row, num, prints, chunk)
                                : WriteAll(piece, row, num, prints));
      row += num;
      ++chunk;
    }
    return by_row ? absl::OkStatus() : Pad(piece);
  }

 private:
  // Moves `row` to the next row that is in use, or was when `fingerprints`,
  // unless null, were made. A table may have room for far more rows than it
  // uses, and nothing is written of the others.
  absl::Status SkipFree(const TablePiece& piece, const uint64_t* fingerprints,
                        int64_t* row) {
    constexpr int64_t kAtOnce = kLockedBytes / sizeof(int64_t);
    while (*row < piece.num_rows) {
      const int64_t begin = *row;
      int64_t end = std::min(begin + kAtOnce, piece.num_rows);
      if (fingerprints != nullptr) {
        end = std::find_if(fingerprints + begin, fingerprints + end,
                           [](uint64_t x) { return x != kFree; }) -
              fingerprints;
      }
      TF_RETURN_IF_ERROR(table_->SkipFree(end - begin, piece.uses, row));
      if (*row < end || end == begin) {
        break;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Read(const TablePiece& piece, int64_t num) {
    const int64_t at_once = std::max<int64_t>(
        1, kLockedBytes / std::max<int64_t>(1, table_->all_row_bytes()));
    std::vector<char*> to = out_;
    for (int64_t row = 0; row < num; row += at_once) {
      const int64_t some = std::min(at_once, num - row);
      TF_RETURN_IF_ERROR(table_->Read(some, piece.uses, to));
      if (piece.uses < 0) {  // Otherwise it may be a free row.
        Look(piece, to[0], some);
      }
      for (size_t k = 0; k < to.size(); ++k) {
        to[k] += some * row_bytes_[k];
      }
    }
    return absl::OkStatus();
  }

  absl::Status WriteAll(const TablePiece& piece, int64_t row, int64_t num,
                        uint64_t* fingerprints) {
    if (fingerprints != nullptr) {
      for (int64_t i = 0; i < num; ++i) {
        fingerprints[i] = Fingerprint(i);
      }
    }
    return Add(piece, row, num);
  }

  absl::Status WriteChanged(const TablePiece& piece, int64_t row, int64_t num,
                            uint64_t* fingerprints, int64_t chunk) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < num; ++i) {
      const bool is_free = piece.uses >= 0 && IsFree(piece.uses, i);
      if (piece.uses >= 0 && !is_free) {
        Look(piece, out_[0] + i * row_bytes_[0], 1);
      }
      if (fingerprints == nullptr) {
        if (is_free) {
          continue;
        }
      } else {
        const uint64_t fingerprint = is_free ? kFree : Fingerprint(i);
        if (fingerprint == fingerprints[i]) {
          continue;
        }
        fingerprints[i] = fingerprint;
      }
      const auto to = static_cast<int64_t>(ids.size());
      if (is_free) {
        Clear(i, piece.uses);
      }
      for (size_t k = 0; to != i && k < out_.size(); ++k) {
        std::memcpy(out_[k] + to * row_bytes_[k], out_[k] + i * row_bytes_[k],
                    row_bytes_[k]);
      }
      ids.push_back(piece.first + (row + i) * piece.stride);
    }
    if (ids.empty()) {
      return absl::OkStatus();
    }
    const auto size = static_cast<int64_t>(ids.size());
    Tensor of_ids(tensorflow::DT_INT64, {size});
    std::copy(ids.begin(), ids.end(), Data<int64_t>(of_ids));
    TF_RETURN_IF_ERROR(
        bundle_->Add(piece.ChangedKey(piece.names[0], chunk, "ids"), of_ids));
    for (size_t k = 0; k < chunk_.size(); ++k) {
      TF_RETURN_IF_ERROR(
          bundle_->Add(piece.ChangedKey(piece.names[k], chunk, "rows"),
                       Rows(chunk_[k], size, false)));
    }
    writer_->Count(size * (table_->all_row_bytes() + 8), size);
    return absl::OkStatus();
  }

  // Writes the row that this piece does not have while other pieces do.
  absl::Status Pad(const TablePiece& piece) {
    if (piece.stride == 1 || piece.num_rows == piece.stored_rows()) {
      return absl::OkStatus();
    }
    for (size_t k = 0; k < chunk_.size(); ++k) {
      std::memset(out_[k], 0, row_bytes_[k]);
    }
    return Add(piece, piece.num_rows, 1);
  }

  absl::Status Add(const TablePiece& piece, int64_t row, int64_t num) {
    for (size_t k = 0; k < chunk_.size(); ++k) {
      const TensorShape& row_shape = table_->row_shape(static_cast<int>(k));
      TensorShape stored;
      TF_RETURN_IF_ERROR(piece.StoredShape(row_shape, &stored));
      TF_RETURN_IF_ERROR(
          bundle_->AddSlice(piece.names[k], stored,
                            piece.StoredSlice(row, row + num, row_shape.dims()),
                            Rows(chunk_[k], num, piece.stride > 1)));
    }
    writer_->Count(num * table_->all_row_bytes(), num);
    return absl::OkStatus();
  }

  // Rows that have not changed are looked at as well: the checkpoint has them.
  void Look(const TablePiece& piece, const char* rows, int64_t num) {
    writer_->Look(piece.names[0], table_->dtype(0), rows, num * row_bytes_[0]);
  }

  // Only the use of a row without a key was read.
  void Clear(int64_t i, int64_t uses) {
    for (size_t k = 0; k < out_.size(); ++k) {
      if (static_cast<int64_t>(k) != uses) {
        std::memset(out_[k] + i * row_bytes_[k], 0, row_bytes_[k]);
      }
    }
  }

  bool IsFree(int64_t uses, int64_t i) const {
    int32_t use[2];  // when it was used last, and how often it was
    std::memcpy(use, out_[uses] + i * row_bytes_[uses], sizeof(use));
    return use[1] == 0;
  }

  uint64_t Fingerprint(int64_t i) const {
    uint64_t fingerprint = 0;
    for (size_t k = 0; k < out_.size(); ++k) {
      fingerprint = RowFingerprint(out_[k] + i * row_bytes_[k], row_bytes_[k],
                                   fingerprint);
    }
    return fingerprint;
  }

  CheckpointWriter* const writer_;
  BundleWriter* const bundle_;
  TableSnapshot* const table_;
  int64_t chunk_rows_;
  std::vector<Tensor> chunk_;  // for each array
  std::vector<char*> out_;     // where their elements begin
  std::vector<int64_t> row_bytes_;
};

absl::StatusOr<int64_t> CheckpointWriter::Begin(CheckpointRequest request) {
  MutexLock lock(mu_);
  if (!progress_.done) {
    return absl::FailedPreconditionError(
        "A checkpoint is being written already.");
  }
  if (!request.base.empty() && request.base != fingerprints_of_) {
    return absl::FailedPreconditionError(
        absl::StrCat("Rows cannot be compared with checkpoint '", request.base,
                     "': the last one here was '", fingerprints_of_, "'."));
  }
  progress_ = CheckpointProgress();
  progress_.done = false;
  cancelled_ = false;
  began_ = std::chrono::steady_clock::now();
  max_bytes_per_sec_ = request.max_bytes_per_sec;
  kept_ = request.kept;
  tables_ = request.tables;
  for (const std::shared_ptr<TableSnapshot>& table : tables_) {
    TableSnapshot::Register(table);
  }
  owner_ = request.owner;
  const std::string owner = request.owner;
  const std::vector<TablePiece> pieces = request.pieces;
  accepted_ = std::make_unique<CheckpointRequest>(std::move(request));
  const int64_t writing = ++writing_;
  lock.Unlock();
  if (!owner.empty()) {
    Writers::All().Add(shared_from_this());
    for (const auto& writer : Writers::All().Find()) {
      writer->Forget(owner, pieces);
    }
  }
  return writing;
}

void CheckpointWriter::Forget(const std::string& owner,
                              const std::vector<TablePiece>& pieces) {
  const MutexLock lock(mu_);
  // A writer that still writes for a lost owner will soon be cancelled, with
  // the step in which it writes, and then it forgets everything.
  if (owner_ == owner || !progress_.done) {
    return;
  }
  for (const TablePiece& piece : pieces) {
    if (fingerprints_.erase({piece.names[0], piece.first}) > 0) {
      fingerprints_of_.clear();
    }
  }
}

absl::StatusOr<int64_t> CheckpointWriter::Write(std::function<void()> ended) {
  std::shared_ptr<CheckpointRequest> request;
  int64_t writing;
  {
    const MutexLock lock(mu_);
    if (accepted_ == nullptr) {
      return absl::FailedPreconditionError(
          "There is no checkpoint to write: none was begun.");
    }
    request = std::move(accepted_);
    ended_ = std::move(ended);
    writing = writing_;
  }
  if (!StartDetachedThread(kThreadName, [self = shared_from_this(), request] {
        self->Run(std::move(*request));
      })) {
    End(absl::ResourceExhaustedError(
        "There is no thread to write the checkpoint."));
  }
  return writing;
}

CheckpointProgress CheckpointWriter::Progress() const {
  const MutexLock lock(mu_);
  CheckpointProgress progress = progress_;
  if (kept_ != nullptr) {
    progress.kept_peak = kept_->peak();
  }
  return progress;
}

void CheckpointWriter::Stop(int64_t writing) {
  std::function<void()> ended;
  {
    MutexLock lock(mu_);
    if (writing != writing_ || progress_.done) {
      return;
    }
    cancelled_ = true;
    const Held held = {std::move(tables_), kept_};
    tables_.clear();
    ended.swap(ended_);
    // There is no thread yet that would report the end.
    if (accepted_ != nullptr) {
      accepted_ = nullptr;
      progress_.done = true;
      progress_.status = absl::CancelledError("The checkpoint was cancelled.");
    }
    lock.Unlock();
    changed_.NotifyAll();
    LetGo(held);
  }
  if (ended != nullptr) {
    ended();
  }
}

absl::Status CheckpointWriter::Cancel() {
  MutexLock lock(mu_);
  const int64_t writing = writing_;
  lock.Unlock();
  Stop(writing);
  lock.Lock();
  const auto wait = kept_ == nullptr
                        ? kLongestWait
                        : std::min(kLongestWait, kept_->patience());
  const auto until = After(std::chrono::steady_clock::now(), wait);
  while (!progress_.done) {
    if (changed_.WaitUntil(mu_, until) && !progress_.done) {
      return absl::DeadlineExceededError(
          absl::StrCat("The writing of a checkpoint was cancelled ",
                       wait.count(), " s ago, but its files do not answer."));
    }
  }
  fingerprints_of_.clear();
  fingerprints_.clear();
  return absl::OkStatus();
}

absl::Status CheckpointWriter::OrNoMemory(
    const std::function<absl::Status()>& make) const {
  try {
    return make();
  } catch (const std::exception&) {  // std::bad_alloc, for example
    return no_memory_;
  }
}

void CheckpointWriter::LetGo(const Held& held) {
  for (const std::shared_ptr<TableSnapshot>& table : held.tables) {
    table->Abandon();
  }
  held.kept->Close();
}

void CheckpointWriter::End(const absl::Status& status) {
  std::function<void()> ended;
  {
    MutexLock lock(mu_);
    const Held held = {std::move(tables_), kept_};
    tables_.clear();
    lock.Unlock();
    const absl::Status gave_up = OrNoMemory([&] { return GaveUp(*held.kept); });
    // Waits for room end before anybody hears of the end of the writing.
    LetGo(held);
    lock.Lock();
    ended.swap(ended_);
    progress_.done = true;
    progress_.status = gave_up.ok() ? status : gave_up;
  }
  changed_.NotifyAll();
  if (ended != nullptr) {
    ended();
  }
}

int64_t CheckpointWriter::ChunkBytes() const {
  if (max_bytes_per_sec_ == 0) {
    return kChunkBytes;
  }
  return static_cast<int64_t>(
      std::min<double>(kChunkBytes, max_bytes_per_sec_ / kTurnsPerSec));
}

bool CheckpointWriter::AwaitTurn() {
  MutexLock lock(mu_);
  if (max_bytes_per_sec_ > 0) {
    // The wait is at most a day, so that the time does not overflow.
    const double secs = std::min(
        86400.0, static_cast<double>(progress_.bytes) / max_bytes_per_sec_);
    const auto due = After(began_, KeptBytes::Seconds(secs));
    while (!cancelled_ && !changed_.WaitUntil(mu_, due)) {
    }
  }
  return !cancelled_;
}

void CheckpointWriter::Count(int64_t bytes, int64_t rows) {
  const MutexLock lock(mu_);
  progress_.bytes += bytes;
  progress_.rows += rows;
}

void CheckpointWriter::Look(const std::string& name, tensorflow::DataType dtype,
                            const char* numbers, int64_t bytes) {
  if (!AreFinite(dtype, numbers, bytes)) {
    const MutexLock lock(mu_);
    progress_.not_finite.insert(name);
  }
}

void CheckpointWriter::Run(CheckpointRequest request) {
  BeNice();
  const absl::Status status = OrNoMemory([&] { return WriteFiles(request); });
  request = CheckpointRequest();
  if (!status.ok()) {
    fingerprints_.clear();  // they belong to no checkpoint
  }
  End(status);
}

absl::Status CheckpointWriter::WriteFiles(CheckpointRequest& request) {
  const bool changed_only = !request.base.empty();
  // If the writing fails half-way, the fingerprints belong to no checkpoint.
  fingerprints_of_.clear();
  if (request.token.empty()) {
    fingerprints_.clear();
  }
  BundleWriter bundle(Env::Default(), request.prefix);
  TF_RETURN_IF_ERROR(bundle.status());
  for (auto& [name, tensor] : request.wholes) {
    TF_RETURN_IF_ERROR(bundle.Add(name, tensor));
    Look(name, tensor.dtype(), Elements(tensor),
         static_cast<int64_t>(tensor.TotalBytes()));
    Count(static_cast<int64_t>(tensor.TotalBytes()), 0);
    tensor = Tensor();
  }
  for (size_t group = 0; group < request.tables.size(); ++group) {
    TableSnapshot& table = *request.tables[group];
    Share share(this, &bundle, &table);
    for (const TablePiece& piece : request.pieces) {
      if (piece.group != static_cast<int64_t>(group)) {
        continue;
      }
      uint64_t* fingerprints = nullptr;
      if (!request.token.empty()) {
        Fingerprints& known = fingerprints_[{piece.names[0], piece.first}];
        if (changed_only && known.num_rows != piece.num_rows) {
          return absl::FailedPreconditionError(
              absl::StrCat("Table ", piece.names[0], " was not in checkpoint '",
                           request.base, "' as it is now."));
        }
        if (!changed_only) {
          const int64_t bytes =
              std::max<int64_t>(1, piece.num_rows) * int64_t{sizeof(uint64_t)};
          known = {piece.num_rows, ZeroPages(bytes)};
          if (known.by_row.owner == nullptr) {
            return OutOfMemory("the fingerprints of rows", bytes);
          }
        }
        fingerprints = static_cast<uint64_t*>(known.by_row.data);
      }
      TF_RETURN_IF_ERROR(share.Write(piece, fingerprints, changed_only));
      TF_RETURN_IF_ERROR(GaveUp(*request.kept));
    }
    table.Abandon();
  }
  TF_RETURN_IF_ERROR(bundle.Finish());
  fingerprints_of_ = request.token;
  return absl::OkStatus();
}

}  // namespace tf_syncrep
