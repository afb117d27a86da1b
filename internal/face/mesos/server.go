package mesos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/caller"
	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/auth"
	"github.com/longshore/longshore/internal/face/mesos/fetch"
	"github.com/longshore/longshore/internal/face/mesos/providers"
	"github.com/longshore/longshore/internal/face/mesos/sandbox"
	"github.com/longshore/longshore/internal/face/mesos/session"
	"github.com/longshore/longshore/internal/keylock"
	"github.com/longshore/longshore/internal/span"
)

// server has the handlers of the calls, and what they share.
type server struct {
	engine    *engine.Client
	log       *slog.Logger
	metrics   face.Metrics
	version   string
	hostname  string
	workDir   string
	agentRoot string // only root may search it
	gcDelay   string // as a flag of Mesos, "" for none
	diskQuota *diskQuota
	gpus      *gpuPool
	fetcher   fetch.Fetcher
	tree      sandbox.Tree
	sessions  session.Table
	ids       keylock.Map[string] // locks containers by id while they are launched and removed
	level     *logLevel
	state     *nodeState
	rules     *auth.Rules // for clients over TCP
	audit     caller.Audit
	// heartbeat is the interval of heartbeats on streams of output.
	heartbeat time.Duration
	handlers  map[mesosagent.Call_Type]handler
	calls     sync.WaitGroup // in flight
}

// providerDir has the configurations of resource providers, below the work directory.
const providerDir = "resource_providers"

// cacheDir is the fetcher's cache, below the work directory.
const cacheDir = "fetched"

// handler executes one call and answers it.
type handler func(ctx context.Context, x *api.Exchange) error

func newServer(o Options) (*server, error) {
	hostname, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("mesos face: %w", err)
	}
	s := &server{
		engine: o.Engine, log: o.Logger, metrics: o.Counting(), version: o.Version, hostname: hostname, workDir: o.Config.WorkDir, agentRoot: o.Root,
		level: newLogLevel(o.Level), heartbeat: heartbeatInterval, audit: o.Audit,
	}
	if s.tree, err = sandbox.New(s.workDir); err != nil {
		return nil, fmt.Errorf("mesos face: %w", err)
	}
	s.gpus = newGPUPool(o.Config.GPUs)
	cache, err := fetch.NewCache(filepath.Join(s.workDir, cacheDir), o.Config.FetcherCacheBytes)
	if err != nil {
		return nil, fmt.Errorf("mesos face: %w", err)
	}
	s.fetcher = fetch.Fetcher{Limit: o.Config.MaxFetchBytes, Cache: cache, Dirs: o.Config.FetchDirs, Work: s.tree.Root()}
	s.diskQuota = &diskQuota{server: s, interval: time.Duration(o.Config.DiskWatchInterval)}
	if o.Config.GCDelay > 0 {
		s.gcDelay = o.Config.GCDelay.Flag()
	}
	s.state = &nodeState{reader: ReaderOf(o.Engine), agent: hostname, dir: s.tree.Dir(), gpus: len(o.Config.GPUs), cache: cache, started: time.Now()}
	if o.All != nil {
		s.state.reader, s.state.allOwners = o.All, true
	}
	configs, err := providers.New(filepath.Join(s.workDir, providerDir))
	if err != nil {
		return nil, fmt.Errorf("mesos face: %w", err)
	}
	s.handlers = map[mesosagent.Call_Type]handler{
		mesosagent.Call_GET_HEALTH:             getHealth,
		mesosagent.Call_GET_FLAGS:              s.getFlags,
		mesosagent.Call_GET_VERSION:            s.getVersion,
		mesosagent.Call_GET_METRICS:            s.state.getMetrics,
		mesosagent.Call_GET_LOGGING_LEVEL:      s.getLoggingLevel,
		mesosagent.Call_SET_LOGGING_LEVEL:      s.setLoggingLevel,
		mesosagent.Call_GET_STATE:              s.state.getState,
		mesosagent.Call_GET_FRAMEWORKS:         s.state.getFrameworks,
		mesosagent.Call_GET_EXECUTORS:          s.state.getExecutors,
		mesosagent.Call_GET_OPERATIONS:         getOperations,
		mesosagent.Call_GET_TASKS:              s.state.getTasks,
		mesosagent.Call_GET_AGENT:              s.state.getAgent,
		mesosagent.Call_GET_RESOURCE_PROVIDERS: getResourceProviders,

		mesosagent.Call_ADD_RESOURCE_PROVIDER_CONFIG:    addProvider(configs),
		mesosagent.Call_UPDATE_RESOURCE_PROVIDER_CONFIG: updateProvider(configs),
		mesosagent.Call_REMOVE_RESOURCE_PROVIDER_CONFIG: removeProvider(configs),

		mesosagent.Call_PRUNE_IMAGES:   s.pruneImages,
		mesosagent.Call_LIST_FILES:     s.listFiles,
		mesosagent.Call_READ_FILE:      s.readFile,
		mesosagent.Call_GET_CONTAINERS: s.getContainers,

		mesosagent.Call_LAUNCH_NESTED_CONTAINER_SESSION: s.launchSession,
		mesosagent.Call_ATTACH_CONTAINER_INPUT:          s.attachInput,
		mesosagent.Call_ATTACH_CONTAINER_OUTPUT:         s.attachOutput,

		mesosagent.Call_LAUNCH_CONTAINER:        s.launchContainer,
		mesosagent.Call_WAIT_CONTAINER:          s.waitContainer,
		mesosagent.Call_KILL_CONTAINER:          s.killContainer,
		mesosagent.Call_REMOVE_CONTAINER:        s.removeContainer,
		mesosagent.Call_LAUNCH_NESTED_CONTAINER: s.launchNestedContainer,
		mesosagent.Call_WAIT_NESTED_CONTAINER:   s.waitContainer,
		mesosagent.Call_KILL_NESTED_CONTAINER:   s.killContainer,
		mesosagent.Call_REMOVE_NESTED_CONTAINER: s.removeContainer,
	}
	return s, nil
}

// call executes one call. A panic fails this call only.
func (s *server) call(ctx context.Context, x *api.Exchange) (err error) {
	s.calls.Add(1)
	defer s.calls.Done()
	name, began := x.Call.GetType().String(), time.Now()
	defer func() {
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler { //nolint:errorlint // net/http panics with this value
				panic(v)
			}
			s.metrics.Panic(Name)
			s.log.ErrorContext(ctx, "a call panicked", "call", name, "panic", v)
			err = errors.New("internal error")
		}
		if err != nil && isLaunch(x.Call.GetType()) {
			s.state.counters.LaunchFailed()
		}
		s.metrics.Request(Name, name, strconv.Itoa(api.StatusCode(err)), time.Since(began))
	}()
	// A client of the unix socket is root, and not a principal.
	if who, ok := auth.PrincipalFrom(ctx); ok {
		if !s.rules.Allow(who, x.Call) {
			return api.Forbidden()
		}
		x.Filter = func(resp *mesosagent.Response) { s.rules.Filter(who, resp) }
	}
	do := s.handlers[x.Call.GetType()]
	if do == nil {
		return api.NotImplemented()
	}
	if err := s.state.refuseOthers(ctx, x.Call); err != nil {
		return err
	}
	if !strings.HasPrefix(name, "GET_") && span.On() {
		var end func(error)
		ctx, end = span.Start(ctx, Name+" "+name)
		defer func() { end(err) }()
	}
	if s.audit == nil {
		return do(ctx, x)
	}
	from := caller.Caller{Face: Name, Call: name, Peer: connlimit.PeerOf(ctx)}
	if who, ok := auth.PrincipalFrom(ctx); ok {
		from.Peer = fmt.Sprintf("principal %s", cmp.Or(who.Name, fmt.Sprint(who.Claims)))
	}
	ctx = caller.With(ctx, from)
	err = do(ctx, x)
	if changes(x.Call.GetType()) {
		s.audit.Call(ctx, "", err)
	}
	return err
}

// changes reports whether a call changes something beside containers. The engine's verbs report those.
func changes(t mesosagent.Call_Type) bool {
	switch t {
	case mesosagent.Call_PRUNE_IMAGES, mesosagent.Call_SET_LOGGING_LEVEL, mesosagent.Call_ADD_RESOURCE_PROVIDER_CONFIG,
		mesosagent.Call_UPDATE_RESOURCE_PROVIDER_CONFIG, mesosagent.Call_REMOVE_RESOURCE_PROVIDER_CONFIG:
		return true
	}
	return false
}

// permitUser returns the function that checks the user of a process against the rules,
// once its uid is known; nil for calls over the unix socket.
func (s *server) permitUser(ctx context.Context, x *api.Exchange) func(specs.User) error {
	who, ok := auth.PrincipalFrom(ctx)
	if !ok {
		return nil
	}
	return func(u specs.User) error {
		if !s.rules.AllowUser(who, x.Call, u.UID) {
			return api.Forbidden()
		}
		return nil
	}
}

// isLaunch reports whether a call of this type starts a process.
func isLaunch(t mesosagent.Call_Type) bool {
	switch t { //nolint:exhaustive // all others start none
	case mesosagent.Call_LAUNCH_CONTAINER, mesosagent.Call_LAUNCH_NESTED_CONTAINER, mesosagent.Call_LAUNCH_NESTED_CONTAINER_SESSION:
		return true
	default:
		return false
	}
}
