package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/timestamppb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
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
	resp.Records, err = s.srv.egressLog(sb.ID)
	return resp, err
}

// egressLog returns the records of a sandbox.
func (s *Server) egressLog(id core.ID) (list []*longshorev1.EgressRecord, err error) {
	if s.o.EgressLog == nil {
		return nil, fmt.Errorf("this agent has no egress logs: %w", errdefs.ErrNotImplemented)
	}
	f, err := os.Open(s.o.EgressLog(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	records, err := egress.Records(f)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		list = append(list, egressRecord(r))
	}
	return list, nil
}

func egressRecord(r egress.Record) *longshorev1.EgressRecord {
	out := &longshorev1.EgressRecord{
		Time: timestamppb.New(r.Time), Kind: r.Kind, Name: r.Name, Protocol: r.Proto, Port: uint32(r.Port), Uid: r.UID, Count: uint32(max(r.Count, 0)), Reason: r.Reason,
	}
	if r.Addr.IsValid() {
		out.Address = r.Addr.String()
	}
	for _, a := range r.Addrs {
		out.Addresses = append(out.Addresses, a.String())
	}
	return out
}

// reportDelay bounds the time from a refusal to its record: the kernel reports several at once.
const reportDelay = time.Second

// maxRefused is the number of refusals in the answer to why.
const maxRefused = 5

// lastRefused returns the last refusals before a container's end, or until now. The log ends with the sandbox's network, and the
// autopsy has them then.
func (s *Server) lastRefused(c *core.Container) (list []*longshorev1.EgressRecord, err error) {
	if a := c.Main.Autopsy; a != nil && len(a.EgressRefused) > 0 {
		for _, r := range a.EgressRefused {
			list = append(list, egressRecord(egress.Record{Time: r.At, Kind: r.Kind, Name: r.Name, Addr: r.Addr, Proto: r.Proto, Port: r.Port, UID: r.UID, Count: r.Count, Reason: r.Reason}))
		}
		return list, nil
	}
	list, err = s.egressLog(c.Sandbox)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(r *longshorev1.EgressRecord) bool {
		refused := r.GetKind() == egress.RecordRefused || r.GetKind() == egress.RecordRefusedName
		return !refused || c.Main.Autopsy != nil && r.GetTime().AsTime().After(c.Main.Autopsy.Exit.At.Add(reportDelay))
	})
	return list[max(0, len(list)-maxRefused):], nil
}
