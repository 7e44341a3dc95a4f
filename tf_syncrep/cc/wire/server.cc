// TensorFlow's server, with a wire beside gRPC: the protocol "grpc+tfs".
//
// It is loaded into a stock TensorFlow and registers itself. What goes over the
// wire: tensors between CPUs, the calls of a step in a session, and the calls
// of the eager service if all tasks of the cluster have a wire. Everything else
// is gRPC's, and so is everything between tasks of which one has no wire.
//
// A wire has no port of its own. Connections come in at gRPC's, where the
// library that is preloaded into a task's process sees their first bytes, and
// hands them over: see cc/preload. Without it others cannot dial this task, but
// it can dial them.

#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/time/time.h"
#include "tensorflow/c/c_api.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/session_factory.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_service.h"
#include "tensorflow/core/distributed_runtime/server_lib.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/platform/random.h"
#include "tensorflow/core/protobuf/tensorflow_server.pb.h"
#include "tensorflow/core/public/session.h"
#include "tensorflow/core/public/session_options.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/wire/frame.h"
#include "tf_syncrep/cc/lib/wire/hub.h"
#include "tf_syncrep/cc/lib/wire/socket_network.h"
#include "tf_syncrep/cc/wire/calls.h"
#include "tf_syncrep/cc/wire/function_room.h"
#include "tf_syncrep/cc/wire/methods.h"
#include "tf_syncrep/cc/wire/rendezvous.h"
#include "tf_syncrep/cc/wire/served_calls.h"
#include "tf_syncrep/cc/wire/worker.h"
#include "tf_syncrep/cc/wire/worker_client.h"

namespace tf_syncrep {
namespace wire {
namespace {

using tensorflow::DeviceMgr;
using tensorflow::Env;
using tensorflow::GrpcServer;
using tensorflow::GrpcServerOptions;
using tensorflow::ServerDef;
using tensorflow::ServerInterface;
using tensorflow::WorkerEnv;

constexpr char kProtocol[] = "grpc+tfs";
// How often tasks that are not there are asked for each line of the log.
constexpr int kTurnsToSayIt = 10;

std::string TaskName(const std::string& job, int index) {
  return absl::StrCat("/job:", job, "/replica:0/task:", index);
}

// The hubs of this process, by the ports of their servers. They stay: servers
// of TensorFlow cannot be destroyed.
class Hubs {
 public:
  static Hubs& Get() {
    static auto* hubs = new Hubs;
    return *hubs;
  }

  // While this is there, a server listens whose port is not known yet: what
  // comes in at an unknown one is its.
  class Starting {
   public:
    explicit Starting(Hub* hub) { Get().Start(hub); }
    ~Starting() { Get().Start(nullptr); }
    Starting(const Starting&) = delete;
    Starting& operator=(const Starting&) = delete;
  };

  void Set(int port, Hub* hub) {
    MutexLock lock(mu_);
    by_port_[port] = hub;
  }

  // Takes a connection that came in at one of the ports, and begins as those of
  // a wire do. Returns false if it is nobody's.
  static bool Take(int connection) {
    sockaddr_in6 own{};
    socklen_t size = sizeof own;
    if (getsockname(connection, reinterpret_cast<sockaddr*>(&own), &size) !=
        0) {
      return false;
    }
    // The port is at the same place in both families.
    Hub* hub = nullptr;
    {
      Hubs& hubs = Get();
      MutexLock lock(hubs.mu_);
      const auto found = hubs.by_port_.find(ntohs(own.sin6_port));
      hub = found != hubs.by_port_.end() ? found->second : hubs.starting_;
    }
    if (hub == nullptr) {
      return false;
    }
    hub->Accept(std::make_unique<SocketStream>(connection));
    return true;
  }

 private:
  void Start(Hub* hub) {
    MutexLock lock(mu_);
    starting_ = hub;
  }

  Mutex mu_;
  std::map<int, Hub*> by_port_ TF_SYNCREP_GUARDED_BY(mu_);
  // One of them, if several start at once: a hello for another one is refused,
  // and whoever said it comes again.
  Hub* starting_ TF_SYNCREP_GUARDED_BY(mu_) = nullptr;
};

// Asks for the connections that begin as a wire's, before a server listens.
void HearOthers() {
  using SetTaker = void (*)(bool (*)(int));
  const auto set_taker =
      reinterpret_cast<SetTaker>(dlsym(RTLD_DEFAULT, "tf_syncrep_set_taker"));
  if (set_taker != nullptr) {
    set_taker(Hubs::Take);
    return;
  }
  LOG(INFO) << "tf_syncrep: " << kProtocol
            << " only with tasks that this one can dial, since "
               "libtf_syncrep_allow.so is not preloaded, as tf-syncrep launch, "
               "serve and task do";
}

class WireServer : public GrpcServer {
 public:
  static absl::Status Create(const ServerDef& def, DeviceMgr* device_mgr,
                             std::unique_ptr<ServerInterface>* out) {
    HearOthers();
    auto* network = SocketNetwork::Make();
    if (network == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no descriptors for connections of ", kProtocol));
    }
    // TensorFlow's servers cannot be destroyed.
    auto* server = new WireServer(def, network);
    GrpcServerOptions options;
    options.local_device_mgr = device_mgr;
    options.rendezvous_mgr_func = [server](const WorkerEnv*) {
      return new WireRendezvousMgr(server->local_);
    };
    options.worker_func = MakeWorker;
    // It listens before it is whole. What comes in waits for the network.
    const Hubs::Starting starting(&server->hub_);
    {
      const ForMaster for_master(server);
      TF_RETURN_IF_ERROR(server->Init(options));
    }
    server->calls_.Start(server->worker_env(), server->worker_impl());
    if (!network->Start(&server->hub_)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no thread for connections of ", kProtocol));
    }
    Hubs::Get().Set(server->bound_port(), &server->hub_);
    out->reset(server);
    return absl::OkStatus();
  }

  absl::Status UpdateServerDef(const ServerDef& def) override {
    SetCluster(def);
    const ForMaster for_master(this);
    return GrpcServer::UpdateServerDef(def);
  }

  absl::Status AddMasterEagerContextToEagerService(
      const uint64_t context_id, tensorflow::EagerContext* context) override {
    TF_RETURN_IF_ERROR(
        calls_.eager()->CreateMasterContext(context_id, context));
    master_context_ = context;
    return GrpcServer::AddMasterEagerContextToEagerService(context_id, context);
  }

  // A coordinator's context is whole when its server starts.
  absl::Status Start() override {
    if (master_context_ != nullptr) {
      std::string task;
      {
        MutexLock lock(mu_);
        task = others_.empty() ? "" : others_.begin()->first;
      }
      const absl::Status status = task.empty()
                                      ? absl::OkStatus()
                                      : MakeFunctionRoom(master_context_, task);
      if (!status.ok()) {
        LOG(WARNING) << "tf_syncrep: threads that call functions of other "
                        "tasks for the first time may disturb each other: "
                     << status;
      }
    }
    return GrpcServer::Start();
  }

 protected:
  absl::Status WorkerCacheFactory(
      const tensorflow::WorkerCacheFactoryOptions& options,
      tensorflow::WorkerCacheInterface** cache) override {
    tensorflow::WorkerCacheInterface* grpc;
    TF_RETURN_IF_ERROR(GrpcServer::WorkerCacheFactory(options, &grpc));
    const bool for_master = for_master_;
    *cache = new WireWorkerCache(grpc, local_, own_task_, [this, for_master] {
      return for_master ? DecidesForWire() : ServedCalls::IsServing();
    });
    return absl::OkStatus();
  }

 private:
  // The server makes worker caches for the master, and for sessions of other
  // tasks' masters: while this is there, for its own.
  class ForMaster {
   public:
    explicit ForMaster(WireServer* server) : server_(server) {
      server_->for_master_ = true;
    }
    ~ForMaster() { server_->for_master_ = false; }

   private:
    WireServer* const server_;
  };

  WireServer(const ServerDef& def, SocketNetwork* network)
      : GrpcServer(def, Env::Default()),
        own_task_(TaskName(def.job_name(), def.task_index())),
        hub_(
            {absl::StrCat(kVersion, ", TensorFlow ", TF_Version()), own_task_,
             "", tensorflow::random::New64()},
            &calls_, network,
            [] { return std::chrono::steady_clock::now().time_since_epoch(); },
            Say),
        local_{&hub_, worker_env()} {
    SetCluster(def);
  }

  static void Say(const std::string& task, const std::string& what) {
    LOG(INFO) << "tf_syncrep: " << kProtocol << " with " << task << ": "
              << what;
  }

  void SetCluster(const ServerDef& def) {
    for (const auto& job : def.cluster().job()) {
      for (const auto& [index, address] : job.tasks()) {
        const std::string task = TaskName(job.name(), index);
        if (task != own_task_) {
          hub_.SetAddress(task, address);
          MutexLock lock(mu_);
          others_[task] = address;
        }
      }
    }
  }

  // Whether calls of the eager service go over the wire. A context's service is
  // the wire's or gRPC's on all tasks: whoever makes the context decides, when
  // it begins; others have theirs where the call to make it came from.
  //
  // Waits for tasks that have not started, as TensorFlow then does: it makes no
  // context before all of them have answered.
  bool DecidesForWire() {
    std::vector<std::string> tasks;
    {
      MutexLock lock(mu_);
      if (by_wire_) {
        return *by_wire_;
      }
      for (const auto& [task, address] : others_) {
        tasks.push_back(task);
      }
    }
    // In the last turn each of them answers: one that had none may be back,
    // with a wire.
    Turn turn = Ask(tasks);
    for (int num_turns = 0; !turn.silent.empty(); ++num_turns) {
      if (num_turns % kTurnsToSayIt == 0) {
        LOG(INFO) << "tf_syncrep: waiting for an answer of " << turn.silent;
      }
      Env::Default()->SleepForMicroseconds(
          absl::ToInt64Microseconds(absl::FromChrono(Hub::kFirstPause)));
      turn = Ask(tasks);
    }
    const bool by_wire = turn.without.empty();
    if (by_wire) {
      LOG(INFO) << "tf_syncrep: calls of the coordinator go by " << kProtocol;
    } else {
      LOG(WARNING) << "tf_syncrep: calls of the coordinator go by gRPC, since "
                      "not all tasks have "
                   << kProtocol << ": " << turn.without << " does not";
    }
    MutexLock lock(mu_);
    by_wire_ = by_wire;
    return by_wire;
  }

  // A task that does not answer, and one that does, but has no wire; empty if
  // there is none.
  struct Turn {
    std::string silent;
    std::string without;
  };

  // Asks all tasks at once.
  Turn Ask(const std::vector<std::string>& tasks) {
    Turn turn;
    Mutex mu;
    absl::BlockingCounter asked(static_cast<int>(tasks.size()));
    for (const std::string& task : tasks) {
      hub_.Await(task,
                 [&](const Hub::ConnectionPtr& connection, bool has_answered) {
                   if (connection == nullptr) {
                     MutexLock lock(mu);
                     (has_answered ? turn.without : turn.silent) = task;
                   }
                   asked.DecrementCount();
                 });
    }
    asked.Wait();  // not for ever: see Hub::Await
    return turn;
  }

  const std::string own_task_;
  ServedCalls calls_;
  Hub hub_;
  const Local local_;
  // Written where TensorFlow calls one after the other: at the start, and when
  // the coordinator changes the cluster.
  std::atomic<bool> for_master_{false};
  Mutex mu_;
  std::map<std::string, std::string> others_ TF_SYNCREP_GUARDED_BY(mu_);
  std::optional<bool> by_wire_ TF_SYNCREP_GUARDED_BY(mu_);
  // Null where no coordinator is. Both uses are in one thread, at the start.
  tensorflow::EagerContext* master_context_ = nullptr;
};

class WireServerFactory : public tensorflow::ServerFactory {
 public:
  bool AcceptsOptions(const ServerDef& def) override {
    return def.protocol() == kProtocol;
  }
  // A def without a job only asks whether this factory is registered: see
  // distribute/wire.py.
  absl::Status NewServer(const ServerDef& def, const Options& options,
                         std::unique_ptr<ServerInterface>* out) override {
    if (def.job_name().empty()) {
      return absl::InvalidArgumentError("job_name must not be empty");
    }
    return WireServer::Create(def, options.local_device_mgr, out);
  }
};

// What TensorFlow's cluster resolver makes of an address and the protocol is
// the target of a session: it begins as one with "grpc", whose master this is.
class WireSessionFactory : public tensorflow::SessionFactory {
 public:
  bool AcceptsOptions(const tensorflow::SessionOptions& options) override {
    return absl::StartsWith(options.target, kScheme);
  }
  absl::Status NewSession(const tensorflow::SessionOptions& options,
                          tensorflow::Session** session) override {
    return tensorflow::NewSession(ByGrpc(options), session);
  }
  absl::Status Reset(const tensorflow::SessionOptions& options,
                     const std::vector<std::string>& containers) override {
    return tensorflow::Reset(ByGrpc(options), containers);
  }

 private:
  static constexpr absl::string_view kScheme = "grpc+tfs://";

  static tensorflow::SessionOptions ByGrpc(
      const tensorflow::SessionOptions& options) {
    tensorflow::SessionOptions by_grpc = options;
    by_grpc.target =
        absl::StrCat("grpc://", options.target.substr(kScheme.size()));
    return by_grpc;
  }
};

// TensorFlow keeps what is registered, and registers its own in this way.
// NOLINTBEGIN(*-throwing-static-initialization, *-cplusplus.NewDeleteLeaks)
[[maybe_unused]] const bool is_registered = [] {
  tensorflow::ServerFactory::Register("TF_SYNCREP_SERVER",
                                      new WireServerFactory);
  tensorflow::SessionFactory::Register("TF_SYNCREP_SESSION",
                                       new WireSessionFactory);
  return true;
}();
// NOLINTEND(*-throwing-static-initialization, *-cplusplus.NewDeleteLeaks)

}  // namespace
}  // namespace wire
}  // namespace tf_syncrep
