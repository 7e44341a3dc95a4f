// Writes a parameter server's share of a checkpoint, in a thread of its own.

#ifndef TF_SYNCREP_CC_TF_CHECKPOINT_WRITER_H_
#define TF_SYNCREP_CC_TF_CHECKPOINT_WRITER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/owned_buffer.h"
#include "tf_syncrep/cc/tf/table_pieces.h"
#include "tf_syncrep/cc/tf/table_snapshot.h"

namespace tf_syncrep {

struct CheckpointRequest {
  std::string prefix;
  // The name of this checkpoint; empty if no later one will be compared with
  // it.
  std::string token;
  // The checkpoint to compare with, so that only rows that have changed since
  // are written; empty to write all rows.
  std::string base;
  // The name of the owner, if tables outlive their owner; otherwise empty. See
  // Begin().
  std::string owner;
  std::vector<std::shared_ptr<TableSnapshot>> tables;
  std::vector<TablePiece> pieces;
  std::vector<std::pair<std::string, tensorflow::Tensor>> wholes;
  std::shared_ptr<KeptBytes> kept;
  // A limit to the speed of writing, so that others get their share of a disk
  // or a network; 0 for no limit.
  double max_bytes_per_sec = 0;
};

struct CheckpointProgress {
  bool done = true;
  absl::Status status;
  int64_t bytes = 0;  // bytes that were written
  int64_t rows = 0;   // rows of tables that were written
  // the most bytes that were kept for the snapshot at one time
  int64_t kept_peak = 0;
  // the names of whole variables, and of tables without their slots, in which
  // something is not finite
  std::set<std::string> not_finite;
};

// There is one for each task and folder. It writes one checkpoint at a time, by
// TensorFlow's own BundleWriter, in pieces of a few MiB. From one checkpoint to
// the next it keeps the fingerprint of each row, which tells whether the row
// has changed.
//
// A thread writes, and nobody joins it. It keeps the writer alive: if a file
// system hangs, the thread may outlive everybody who has asked for something.
class CheckpointWriter final
    : public std::enable_shared_from_this<CheckpointWriter> {
 public:
  // Accepts a request. The checkpoint shows this moment: rows that are
  // overwritten from now on are kept. Returns the number of this writing. Other
  // writers of this process forget what they know of these tables for another
  // owner: that owner was lost, and nobody else would free the memory. Errors:
  // FailedPrecondition if a checkpoint is being written, or if `base` is not
  // the last one.
  absl::StatusOr<int64_t> Begin(CheckpointRequest request);

  // Starts to write the request that Begin() has accepted. `ended` is called
  // once, without a lock held, when no variable is touched any more: everything
  // is written, or writing has failed, as Progress() tells, or it was stopped.
  // It is not called after an error. Errors: FailedPrecondition if no request
  // was accepted.
  absl::StatusOr<int64_t> Write(std::function<void()> ended);

  CheckpointProgress Progress() const;

  // Ends the writing with this number; it has no effect on another one. When it
  // returns, no variable is touched any more, but a file may still be open.
  void Stop(int64_t writing);

  // Ends the present writing, closes its files, and forgets what is known of
  // the last checkpoint. Error: DeadlineExceeded if the file system holds the
  // thread up for too long; then the thread goes on to its end by itself.
  absl::Status Cancel();

 private:
  struct Fingerprints {
    int64_t num_rows = 0;
    OwnedBuffer by_row;  // a number of 64 bits each
  };

  class Share;
  class Writers;

  struct Held {
    std::vector<std::shared_ptr<TableSnapshot>> tables;
    std::shared_ptr<KeptBytes> kept;
  };

  // Forgets the tables' fingerprints, unless they were made for this owner.
  void Forget(const std::string& owner, const std::vector<TablePiece>& pieces);
  void Run(CheckpointRequest request);
  absl::Status WriteFiles(CheckpointRequest& request);
  int64_t ChunkBytes() const;
  // Waits until the speed limit allows the bytes counted so far, or until
  // Stop() is called. Returns whether to go on.
  bool AwaitTurn();
  void Count(int64_t bytes, int64_t rows);
  // Takes note of the name if one of these numbers is not finite.
  void Look(const std::string& name, tensorflow::DataType dtype,
            const char* numbers, int64_t bytes);
  // Releases the tables, so that they are not touched any more, and ends waits
  // for room.
  static void LetGo(const Held& held);
  // Returns what `make` does, or no_memory_ if it throws an exception, with
  // which the thread would end the process.
  absl::Status OrNoMemory(const std::function<absl::Status()>& make) const;
  // Ends a writing, in which everything was written or that has failed.
  void End(const absl::Status& status);

  // It is made while there is memory for its text.
  const absl::Status no_memory_ = absl::ResourceExhaustedError(
      "There is no memory to write the checkpoint.");
  mutable Mutex mu_;
  CondVar changed_;  // notified of cancelled_ and progress_.done
  int64_t writing_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  CheckpointProgress progress_ TF_SYNCREP_GUARDED_BY(mu_);
  // The accepted request, until its writing starts.
  std::unique_ptr<CheckpointRequest> accepted_ TF_SYNCREP_GUARDED_BY(mu_);
  std::string owner_ TF_SYNCREP_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<TableSnapshot>> tables_
      TF_SYNCREP_GUARDED_BY(mu_);
  std::shared_ptr<KeptBytes> kept_ TF_SYNCREP_GUARDED_BY(mu_);
  std::function<void()> ended_ TF_SYNCREP_GUARDED_BY(mu_);
  bool cancelled_ TF_SYNCREP_GUARDED_BY(mu_) = false;
  // The next four are used by the thread alone while there is one, otherwise
  // under mu_.
  std::chrono::steady_clock::time_point began_;
  double max_bytes_per_sec_ = 0;
  std::string fingerprints_of_;  // the token of their checkpoint
  // The key is the table, and the first of its rows in the piece.
  std::map<std::pair<std::string, int64_t>, Fingerprints> fingerprints_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_CHECKPOINT_WRITER_H_
