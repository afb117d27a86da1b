package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/timestamppb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/egress"
)

// SetEgress replaces the egress list of a container's sandbox.
func (s *networkServer) SetEgress(ctx context.Context, req *longshorev1.SetEgressRequest) (*longshorev1.SetEgressResponse, error) {
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	v, err := s.srv.changer(c.Meta, req.GetForce())
	if err != nil {
		return nil, err
	}
	if err := v.Attachments.Restrict(ctx, c.Sandbox, req.GetList()); err != nil {
		return nil, err
	}
	sb, err := v.Sandbox(ctx, c.Sandbox)
	if err != nil {
		return nil, err
	}
	return &longshorev1.SetEgressResponse{List: sb.Config.Network.Egress}, nil
}

// EgressLog returns the log of a sandbox's connections.
func (s *networkServer) EgressLog(ctx context.Context, req *longshorev1.EgressLogRequest) (*longshorev1.EgressLogResponse, error) {
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	sb, err := s.srv.all.Sandbox(ctx, c.Sandbox)
	if err != nil {
		return nil, err
	}
	resp := &longshorev1.EgressLogResponse{List: sb.Config.Network.Egress}
	if s.srv.o.EgressLog == nil {
		return nil, fmt.Errorf("this agent has no egress logs: %w", errdefs.ErrNotImplemented)
	}
	f, err := os.Open(s.srv.o.EgressLog(sb.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return resp, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	list, err := egress.Records(f)
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		out := &longshorev1.EgressRecord{
			Time: timestamppb.New(r.Time), Kind: r.Kind, Name: r.Name, Protocol: r.Proto, Port: uint32(r.Port), Uid: r.UID, Count: uint32(max(r.Count, 0)), Reason: r.Reason,
		}
		if r.Addr.IsValid() {
			out.Address = r.Addr.String()
		}
		for _, a := range r.Addrs {
			out.Addresses = append(out.Addresses, a.String())
		}
		resp.Records = append(resp.Records, out)
	}
	return resp, nil
}
