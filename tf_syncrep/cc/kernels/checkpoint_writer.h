// Writes a parameter server's share of a checkpoint, in a thread of its own.

#ifndef TF_SYNCREP_CC_KERNELS_CHECKPOINT_WRITER_H_
#define TF_SYNCREP_CC_KERNELS_CHECKPOINT_WRITER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/kernels/table_snapshot.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/tf/table_pieces.h"

namespace tf_syncrep {

struct CheckpointRequest {
  // Of the files to write.
  std::string prefix;
  // Names this checkpoint; empty if no later one will be compared with it.
  std::string token;
  // The checkpoint to compare with, so as to write only rows that have changed
  // since; empty to write all.
  std::string base;
  // Names who writes, where tables outlive that; or empty. See Begin().
  std::string owner;
  // Tables with their slots, and how they are parted.
  std::vector<std::shared_ptr<TableSnapshot>> tables;
  std::vector<TablePiece> pieces;
  std::vector<std::pair<std::string, tensorflow::Tensor>> wholes;
  std::shared_ptr<KeptBytes> kept;
  // How fast it may write, so that others get their share of a disk or a
  // network; 0 for as fast as possible.
  double max_bytes_per_sec = 0;
};

struct CheckpointProgress {
  bool done = true;
  absl::Status status;
  int64_t bytes = 0;      // of what was written
  int64_t rows = 0;       // of tables, that were written
  int64_t kept_peak = 0;  // bytes that were kept aside, at most
};

// One on each task and folder. It writes one checkpoint at a time, by
// TensorFlow's own BundleWriter, in pieces of a few MiB. The fingerprint of
// each row, which tells whether it has changed, stays here from one checkpoint
// to the next.
//
// A thread writes. It belongs to nobody: it holds the writer, and where a file
// system hangs it may outlive all who have asked for something.
class CheckpointWriter final
    : public std::enable_shared_from_this<CheckpointWriter> {
 public:
  // Accepts a request, whose moment this is: rows that are overwritten from
  // here on are kept. Returns the number of this writing. What other writers of
  // this process know of these tables for another owner is forgotten: that
  // one was lost, and nobody else would free it. Errors:
  // FailedPrecondition where a checkpoint is being written, or `base` is not
  // the last one.
  absl::StatusOr<int64_t> Begin(CheckpointRequest request);

  // Starts to write what Begin() has accepted. `ended` is called once, without
  // a lock held, when no variable is touched any more: all is written or has
  // failed, which Progress() tells, or it was stopped. Errors, after which it
  // is not called: FailedPrecondition where nothing was accepted.
  absl::StatusOr<int64_t> Write(std::function<void()> ended);

  CheckpointProgress Progress() const;

  // Ends a writing; has no effect on another one. When it returns no variable
  // is touched any more, but a file may still be open.
  void Stop(int64_t writing);

  // Ends whatever is being written, closes its files, and forgets what it knows
  // of the last checkpoint. Error: DeadlineExceeded where the file system holds
  // the thread up for too long; then that goes on to its end by itself.
  absl::Status Cancel();

 private:
  using Fingerprints = std::vector<uint64_t>;  // by row

  class Share;
  class Writers;

  struct Held {
    std::vector<std::shared_ptr<TableSnapshot>> tables;
    std::shared_ptr<KeptBytes> kept;
  };

  // Forgets what it knows of tables, unless it knows it for this owner.
  void Forget(const std::string& owner, const std::vector<TablePiece>& pieces);
  void Run(CheckpointRequest request);
  absl::Status WriteFiles(CheckpointRequest& request);
  int64_t ChunkBytes() const;
  // Waits until as many bytes as were counted may have been written, or a call
  // of Stop. Returns whether to go on.
  bool AwaitTurn();
  void Count(int64_t bytes, int64_t rows);
  // Nothing of it is touched any more, and whoever waits for room goes on.
  static void LetGo(const Held& held);
  // Of a writing: all is written, or has failed.
  void End(const absl::Status& status);

  mutable Mutex mu_;
  CondVar changed_;  // of cancelled_ and progress_.done
  int64_t writing_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  CheckpointProgress progress_ TF_SYNCREP_GUARDED_BY(mu_);
  // What was accepted, until it is being written.
  std::unique_ptr<CheckpointRequest> accepted_ TF_SYNCREP_GUARDED_BY(mu_);
  // Of the last one that was.
  std::string owner_ TF_SYNCREP_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<TableSnapshot>> tables_
      TF_SYNCREP_GUARDED_BY(mu_);
  std::shared_ptr<KeptBytes> kept_ TF_SYNCREP_GUARDED_BY(mu_);
  std::function<void()> ended_ TF_SYNCREP_GUARDED_BY(mu_);
  bool cancelled_ TF_SYNCREP_GUARDED_BY(mu_) = false;
  // Used by the thread alone while there is one, otherwise under mu_.
  std::chrono::steady_clock::time_point began_;
  double max_bytes_per_sec_ = 0;
  std::string fingerprints_of_;  // token
  // By the table, and the first of its rows that is here.
  std::map<std::pair<std::string, int64_t>, Fingerprints> fingerprints_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_CHECKPOINT_WRITER_H_
