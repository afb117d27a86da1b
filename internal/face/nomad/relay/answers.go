package relay

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
	"github.com/longshore/longshore/internal/face/nomad/schema"
)

// send marshals one message into a stream.
func send(stream grpc.ServerStream, m proto.Message) error {
	data, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return stream.SendMsg(&frame{data})
}

// answer takes the one request of a call and sends the answer; nil is an empty
// message.
func answer(stream grpc.ServerStream, m proto.Message) error {
	if err := stream.RecvMsg(&frame{}); err != nil {
		return err
	}
	if m == nil {
		return stream.SendMsg(&frame{})
	}
	return send(stream, m)
}

// own answers go-plugin's calls to every plugin.
func (p *proxy) own(stream grpc.ServerStream, method string) error {
	switch method {
	case healthv1.Health_Check_FullMethodName:
		return answer(stream, &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING})
	case "/plugin.GRPCController/Shutdown":
		defer p.shutdown()
		return answer(stream, nil)
	case "/plugin.GRPCBroker/StartStream": // stays silent: no driver call uses the broker
		<-stream.Context().Done()
		return nil
	}
	return status.Errorf(codes.Unimplemented, "%s is not implemented", method)
}

// base answers the BasePlugin service. Nothing of it touches the agent: Nomad
// starts a plugin twice only to ask this.
func (p *proxy) base(stream grpc.ServerStream, call string) error {
	switch call {
	case "PluginInfo":
		return answer(stream, &nomadbase.PluginInfoResponse{
			Type: nomadbase.PluginType_DRIVER, PluginApiVersions: []string{plugin.APIVersion}, PluginVersion: Version(p.version), Name: p.name,
		})
	case "ConfigSchema":
		return answer(stream, &nomadbase.ConfigSchemaResponse{Spec: schema.Spec(plugin.Fields())})
	case "SetConfig":
		var req frame
		if err := stream.RecvMsg(&req); err != nil {
			return err
		}
		if err := p.configure(req.data); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		return stream.SendMsg(&frame{})
	}
	return status.Errorf(codes.Unimplemented, "%s is not implemented", call)
}

// configure keeps the configuration, which goes with every call to the agent.
func (p *proxy) configure(data []byte) error {
	var req nomadbase.SetConfigRequest
	if err := proto.Unmarshal(data, &req); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	cfg, err := plugin.ParseConfig(req.GetMsgpackConfig())
	if err != nil {
		return err
	}
	if v := req.GetPluginApiVersion(); !slices.Contains([]string{"", plugin.APIVersion}, v) {
		return fmt.Errorf("plugin API %s is not %s", v, plugin.APIVersion)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.socket != cfg.Socket && p.conn != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
	p.setConfig, p.config, p.socket = data, cfg, cfg.Socket
	p.answers = nil
	p.agents++
	return nil
}

// Version is the agent's version as Nomad can compare it. A build of no release
// is 0.1.0, as Nomad's own drivers are, so that it may take their place.
func Version(v string) string {
	if m := regexp.MustCompile(`^v?((?:[1-9]\d*\.\d+|0\.[1-9]\d*)\.\d+)`).FindStringSubmatch(v); m != nil {
		return m[1]
	}
	return "0.1.0"
}

// warnIgnored logs the keys of the configuration that have no effect. It logs them once, and only a
// plugin that serves as a driver calls it: Nomad also starts a plugin to check the configuration, and
// sends it twice then.
func (p *proxy) warnIgnored() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if keys := strings.Join(p.config.Ignored, ", "); keys != p.warned {
		p.log.Warn("keys of the plugin's configuration have no effect in this driver; its guide says what to use instead", "keys", keys)
		p.warned = keys
	}
}

// fingerprint passes the face's on, and tells in its place that it is away.
func (p *proxy) fingerprint(stream grpc.ServerStream, method string) error {
	ctx := stream.Context()
	var req frame
	if err := stream.RecvMsg(&req); err != nil {
		return err
	}
	p.warnIgnored()
	for limit := p.blink; ; {
		conn, err := p.ready(ctx, limit)
		if errors.Is(err, errAway) {
			p.log.Warn("the driver is unhealthy", "error", err)
			err = send(stream, &nomaddriver.FingerprintResponse{Health: nomaddriver.FingerprintResponse_UNHEALTHY, HealthDescription: err.Error()})
			limit = 0
			if err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		err = p.once(conn, p.outgoing(ctx, false), stream, method, req)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil && !died(err) {
			return err
		}
		limit = p.blink
	}
}
