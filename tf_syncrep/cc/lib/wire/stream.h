// Bytes in both directions: a TCP connection, or what tests put in its place.

#ifndef TF_SYNCREP_CC_LIB_WIRE_STREAM_H_
#define TF_SYNCREP_CC_LIB_WIRE_STREAM_H_

#include <sys/types.h>
#include <sys/uio.h>

namespace tf_syncrep {
namespace wire {

// No call waits. Read is called by one thread at a time, Write by one at a
// time.
class Stream {
 public:
  // How many bytes, when there were none, or not yet.
  static constexpr ssize_t kNotNow = -1;
  // The stream is over: its other end has closed it, or it broke.
  static constexpr ssize_t kOver = -2;

  virtual ~Stream() = default;

  // Both return the number of bytes, above zero, or one of the above.
  virtual ssize_t Read(const iovec* parts, int num_parts) = 0;
  virtual ssize_t Write(const iovec* parts, int num_parts) = 0;

  // Ends both directions. Calls that come later, or are under way in another
  // thread, return kOver.
  virtual void Shutdown() = 0;
};

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_WIRE_STREAM_H_
