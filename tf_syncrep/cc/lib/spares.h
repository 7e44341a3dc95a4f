// Objects that are used again.

#ifndef TF_SYNCREP_CC_LIB_SPARES_H_
#define TF_SYNCREP_CC_LIB_SPARES_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tf_syncrep {

// Keeps a few objects whose memory is worth keeping until somebody needs one.
// Thread-safe.
template <typename Object>
class Spares {
 public:
  // One that is kept, as it was returned, or a new one.
  std::unique_ptr<Object> Get() {
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (!kept_.empty()) {
        std::unique_ptr<Object> object = std::move(kept_.back());
        kept_.pop_back();
        return object;
      }
    }
    return std::make_unique<Object>();
  }

  void Return(std::unique_ptr<Object> object) {
    std::lock_guard<std::mutex> lock(mu_);
    if (kept_.size() < kMaxKept) {
      kept_.push_back(std::move(object));
    }
  }

 private:
  // A round is summed while the one before is still being taken.
  static constexpr size_t kMaxKept = 2;

  std::mutex mu_;  // guards kept_
  std::vector<std::unique_ptr<Object>> kept_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_SPARES_H_
