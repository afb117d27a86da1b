package mesos

import (
	"context"
	"path/filepath"
	"runtime"
	"time"

	"google.golang.org/protobuf/proto"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/face/mesos/door"
	"github.com/longshore/longshore/internal/face/mesos/figures"
)

func getHealth(_ context.Context, x *door.Exchange) error {
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_HEALTH.Enum(), GetHealth: &mesosagent.Response_GetHealth{Healthy: proto.Bool(true)}})
}

// getFlags tells what of Mesos' flags has a meaning here.
func (s *server) getFlags(_ context.Context, x *door.Exchange) error {
	f := &mesosagent.Response_GetFlags{}
	for _, kv := range [][2]string{
		{"containerizers", "mesos"},
		{"hostname", s.hostname},
		{"http_heartbeat_interval", "30secs"},
		{"image_providers", "docker"},
		{"resource_provider_config_dir", filepath.Join(s.workDir, providerDir)},
		{"work_dir", s.workDir},
	} {
		f.Flags = append(f.Flags, &mesosv1.Flag{Name: &kv[0], Value: &kv[1]})
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_FLAGS.Enum(), GetFlags: f})
}

// develVersion is that of a build that has none: clients take versions apart.
const develVersion = "0.0.0-devel"

func (s *server) getVersion(_ context.Context, x *door.Exchange) error {
	version := s.version
	if version == "" {
		version = develVersion
	}
	v := &mesosagent.Response_GetVersion{VersionInfo: &mesosv1.VersionInfo{Version: &version}}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_VERSION.Enum(), GetVersion: v})
}

func (s *server) getMetrics(_ context.Context, x *door.Exchange) error {
	all, err := figures.Node(s.began)
	if err != nil {
		return err
	}
	m := &mesosagent.Response_GetMetrics{}
	for _, f := range all {
		m.Metrics = append(m.Metrics, &mesosv1.Metric{Name: &f.Name, Value: &f.Value})
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_METRICS.Enum(), GetMetrics: m})
}

func (s *server) getLoggingLevel(_ context.Context, x *door.Exchange) error {
	l := &mesosagent.Response_GetLoggingLevel{Level: proto.Uint32(s.level.Get())}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_LOGGING_LEVEL.Enum(), GetLoggingLevel: l})
}

func (s *server) setLoggingLevel(ctx context.Context, x *door.Exchange) error {
	in := x.Call.GetSetLoggingLevel()
	s.level.Set(in.GetLevel(), time.Duration(in.GetDuration().GetNanoseconds()))
	s.log.InfoContext(ctx, "the log's level was changed", "level", in.GetLevel(), "for", time.Duration(in.GetDuration().GetNanoseconds()))
	return nil
}

// No master gives this agent tasks: there are no frameworks, executors, tasks and
// operations, and no provider subscribes.

func getState(_ context.Context, x *door.Exchange) error {
	st := &mesosagent.Response_GetState{
		GetTasks: &mesosagent.Response_GetTasks{}, GetExecutors: &mesosagent.Response_GetExecutors{}, GetFrameworks: &mesosagent.Response_GetFrameworks{},
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_STATE.Enum(), GetState: st})
}

func getFrameworks(_ context.Context, x *door.Exchange) error {
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_FRAMEWORKS.Enum(), GetFrameworks: &mesosagent.Response_GetFrameworks{}})
}

func getExecutors(_ context.Context, x *door.Exchange) error {
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_EXECUTORS.Enum(), GetExecutors: &mesosagent.Response_GetExecutors{}})
}

func getOperations(_ context.Context, x *door.Exchange) error {
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_OPERATIONS.Enum(), GetOperations: &mesosagent.Response_GetOperations{}})
}

func getTasks(_ context.Context, x *door.Exchange) error {
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_TASKS.Enum(), GetTasks: &mesosagent.Response_GetTasks{}})
}

func getResourceProviders(_ context.Context, x *door.Exchange) error {
	p := &mesosagent.Response_GetResourceProviders{}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_RESOURCE_PROVIDERS.Enum(), GetResourceProviders: p})
}

// getAgent tells of the machine; an id is what a master gives.
func (s *server) getAgent(_ context.Context, x *door.Exchange) error {
	mem, err := figures.Memory()
	if err != nil {
		return err
	}
	info := &mesosv1.AgentInfo{Hostname: &s.hostname, Resources: []*mesosv1.Resource{
		scalar("cpus", float64(runtime.NumCPU())), scalar("mem", float64(mem>>20)),
	}}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_AGENT.Enum(), GetAgent: &mesosagent.Response_GetAgent{AgentInfo: info}})
}

func scalar(name string, value float64) *mesosv1.Resource {
	return &mesosv1.Resource{Name: &name, Type: mesosv1.Value_SCALAR.Enum(), Scalar: &mesosv1.Value_Scalar{Value: &value}}
}
