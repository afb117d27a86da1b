package mesos

import (
	"context"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/sandbox"
)

func getHealth(_ context.Context, x *api.Exchange) error {
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_HEALTH.Enum(), GetHealth: &mesosagent.Response_GetHealth{Healthy: proto.Bool(true)}})
}

// getFlags returns those of Mesos' flags that have a meaning here.
func (s *server) getFlags(_ context.Context, x *api.Exchange) error {
	f := &mesosagent.Response_GetFlags{}
	_, size := s.fetcher.Cache.Used()
	for _, kv := range [][2]string{
		{"container_disk_watch_interval", Duration(s.diskQuota.interval).Flag()},
		{"containerizers", "mesos"},
		{"enforce_container_disk_quota", strconv.FormatBool(s.diskQuota.interval > 0)},
		{"fetcher_cache_dir", filepath.Join(s.workDir, cacheDir)},
		{"fetcher_cache_size", sandbox.FormatBytes(uint64(size))},
		{"gc_delay", s.gcDelay},
		{"hostname", s.hostname},
		{"http_heartbeat_interval", "30secs"},
		{"image_providers", "docker"},
		{"resource_provider_config_dir", filepath.Join(s.workDir, providerDir)},
		{"work_dir", s.workDir},
	} {
		if kv[1] == "" {
			continue // it is not set
		}
		f.Flags = append(f.Flags, &mesosv1.Flag{Name: &kv[0], Value: &kv[1]})
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_FLAGS.Enum(), GetFlags: f})
}

// develVersion is the version of a build without one. Clients parse versions.
const develVersion = "0.0.0-devel"

func (s *server) getVersion(_ context.Context, x *api.Exchange) error {
	version := s.version
	if version == "" {
		version = develVersion
	}
	v := &mesosagent.Response_GetVersion{VersionInfo: &mesosv1.VersionInfo{Version: &version}}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_VERSION.Enum(), GetVersion: v})
}

func (s *server) getLoggingLevel(_ context.Context, x *api.Exchange) error {
	l := &mesosagent.Response_GetLoggingLevel{Level: proto.Uint32(s.level.get())}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_LOGGING_LEVEL.Enum(), GetLoggingLevel: l})
}

func (s *server) setLoggingLevel(ctx context.Context, x *api.Exchange) error {
	in := x.Call.GetSetLoggingLevel()
	s.level.set(in.GetLevel(), time.Duration(in.GetDuration().GetNanoseconds()))
	s.log.InfoContext(ctx, "log level changed by a client", "level", in.GetLevel(), "for", time.Duration(in.GetDuration().GetNanoseconds()))
	return nil
}

// No master gives this agent operations, and no provider subscribes.

func getOperations(_ context.Context, x *api.Exchange) error {
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_OPERATIONS.Enum(), GetOperations: &mesosagent.Response_GetOperations{}})
}

func getResourceProviders(_ context.Context, x *api.Exchange) error {
	p := &mesosagent.Response_GetResourceProviders{}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_RESOURCE_PROVIDERS.Enum(), GetResourceProviders: p})
}
