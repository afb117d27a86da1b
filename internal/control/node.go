package control

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"sort"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/access"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/hostinfo"
)

// nodeServer serves the Node service.
type nodeServer struct {
	longshorev1.UnimplementedNodeServer
	srv *Server
}

var _ longshorev1.NodeServer = (*nodeServer)(nil)

// Version returns the versions of the agent and of its programs.
func (s *nodeServer) Version(ctx context.Context, _ *longshorev1.VersionRequest) (*longshorev1.VersionResponse, error) {
	resp := &longshorev1.VersionResponse{
		Version: s.srv.o.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Started: view.Time(s.srv.o.Started), Pid: int32(os.Getpid()),
	}
	resp.Revision, resp.Kernel = hostinfo.Revision(), hostinfo.Kernel()
	infos, err := s.srv.all.Runtimes(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range infos {
		resp.Runtimes = append(resp.Runtimes, &longshorev1.Runtime{
			Name: r.Name, Default: r.Default, Version: r.Features.Version, Path: r.Features.Path, Problem: r.Problem,
		})
	}
	resp.Processes = s.processes(ctx)
	if s.srv.o.UpgradeFailure != nil {
		resp.UpgradeFailure = s.srv.o.UpgradeFailure()
	}
	return resp, nil
}

func (s *nodeServer) processes(ctx context.Context) (list []*longshorev1.NodeProcess) {
	if s.srv.o.Processes == nil {
		return nil
	}
	for _, p := range s.srv.o.Processes(ctx) {
		list = append(list, &longshorev1.NodeProcess{Name: p.Name, Pid: int32(p.Pid), Version: p.Version, Path: p.Path, State: string(p.State)})
	}
	return list
}

// Upgrade has the node's processes become the installed programs.
func (s *nodeServer) Upgrade(ctx context.Context, _ *longshorev1.UpgradeRequest) (*longshorev1.UpgradeResponse, error) {
	if s.srv.o.Upgrade == nil {
		return nil, fmt.Errorf("upgrade: %w", errdefs.ErrNotImplemented)
	}
	names, err := s.srv.o.Upgrade(ctx)
	if err != nil {
		return nil, err
	}
	if slices.Contains(names, "agent") { // it stops now, and does not wait long for this answer
		return &longshorev1.UpgradeResponse{Upgraded: names}, nil
	}
	return &longshorev1.UpgradeResponse{Upgraded: names, Processes: s.processes(ctx)}, nil
}

// Doctor returns the findings about this node.
func (s *nodeServer) Doctor(ctx context.Context, req *longshorev1.DoctorRequest) (*longshorev1.DoctorResponse, error) {
	if s.srv.o.Doctor == nil {
		return nil, fmt.Errorf("doctor: %w", errdefs.ErrNotImplemented)
	}
	return &longshorev1.DoctorResponse{Findings: toFindings(s.srv.o.Doctor(ctx, !access.ReadOnly(ctx) && !req.GetPassive()))}, nil
}

// Check returns the violations of the engine's invariants.
func (s *nodeServer) Check(ctx context.Context, req *longshorev1.CheckRequest) (*longshorev1.CheckResponse, error) {
	if s.srv.o.Check == nil {
		return nil, fmt.Errorf("check: %w", errdefs.ErrNotImplemented)
	}
	list, err := s.srv.o.Check(ctx, req.GetImages())
	if err != nil {
		return nil, err
	}
	return &longshorev1.CheckResponse{Findings: toFindings(list)}, nil
}

// Config returns the configuration in force.
func (s *nodeServer) Config(context.Context, *longshorev1.ConfigRequest) (*longshorev1.ConfigResponse, error) {
	if s.srv.o.Config == nil {
		return nil, fmt.Errorf("config: %w", errdefs.ErrNotImplemented)
	}
	text, err := s.srv.o.Config()
	if err != nil {
		return nil, err
	}
	return &longshorev1.ConfigResponse{Toml: text}, nil
}

// Events sends the event log from a point on.
func (s *nodeServer) Events(req *longshorev1.EventsRequest, stream grpc.ServerStreamingServer[longshorev1.EventsResponse]) error {
	ctx := stream.Context()
	last, err := s.srv.all.LastSeq(ctx)
	if err != nil {
		return err
	}
	from := last
	var notBefore time.Time
	switch {
	case req.SinceSeq != nil:
		from = req.GetSinceSeq()
	case req.GetSince() != nil:
		from, notBefore = 0, req.GetSince().AsTime()
	case !req.GetFollow():
		from = 0
	}
	if from == 0 {
		from = s.srv.oldest(ctx, last)
	}
	match, err := s.srv.eventMatch(ctx, req)
	if err != nil {
		return err
	}
	for e, err := range s.srv.eventsFrom(ctx, from, last, req.GetFollow()) {
		if err != nil {
			return err
		}
		if e.At.Before(notBefore) || !match(e) {
			continue
		}
		if err := stream.Send(&longshorev1.EventsResponse{Event: view.Event(e)}); err != nil {
			return err
		}
	}
	return nil
}

// eventsFrom yields the events after from, up to last or, with follow, also new ones. It reads
// without a filter, because only then does it see the event numbered last.
func (s *Server) eventsFrom(ctx context.Context, from, last uint64, follow bool) func(func(core.Event, error) bool) {
	return func(yield func(core.Event, error) bool) {
		if !follow && from >= last {
			return
		}
		for e, err := range s.all.Events(ctx, from, core.Filter{}) {
			if !yield(e, err) || (!follow && e.Seq >= last) {
				return
			}
		}
	}
}

// oldest returns the number of the oldest readable event: older ones were trimmed.
func (s *Server) oldest(ctx context.Context, last uint64) uint64 {
	first := sort.Search(int(last), func(n int) bool {
		for _, err := range s.all.Events(ctx, uint64(n), core.Filter{}) {
			return err == nil
		}
		return true
	})
	return uint64(first)
}

// eventMatch returns a function that reports whether a request selects an event.
func (s *Server) eventMatch(ctx context.Context, req *longshorev1.EventsRequest) (func(core.Event) bool, error) {
	var container, sandbox core.ID
	if req.GetName() != "" {
		c, err := s.container(ctx, req.GetName())
		switch {
		case err == nil:
			container, sandbox = c.ID, c.Sandbox
		case errdefs.IsNotFound(err):
			sb, serr := s.sandbox(ctx, req.GetName())
			if serr != nil {
				return nil, err
			}
			sandbox = sb.ID
		default:
			return nil, err
		}
	}
	return func(e core.Event) bool {
		switch {
		case req.GetOwner() != "" && req.GetOwner() != string(e.Owner):
			return false
		case len(req.GetKinds()) > 0 && !slices.Contains(req.GetKinds(), string(e.Kind)):
			return false
		case container != "" && e.Container != container && (e.Container != "" || e.Sandbox != sandbox):
			return false
		case container == "" && sandbox != "" && e.Sandbox != sandbox:
			return false
		}
		return true
	}, nil
}

// dumpEvents is the number of events in a dump.
const dumpEvents = 1000

// Dump sends a gzipped tar for a bug report.
func (s *nodeServer) Dump(_ *longshorev1.DumpRequest, stream grpc.ServerStreamingServer[longshorev1.DumpResponse]) error {
	ctx := stream.Context()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	tw := tar.NewWriter(zip)
	for _, part := range []struct {
		name string
		fill func(context.Context, io.Writer) error
	}{
		{"version.json", s.dumpVersion},
		{"goroutines.txt", func(_ context.Context, w io.Writer) error { return pprof.Lookup("goroutine").WriteTo(w, 2) }},
		{"config.toml", s.dumpConfig},
		{"doctor.json", s.dumpDoctor},
		{"objects.json", s.dumpObjects},
		{"events.jsonl", s.dumpEvents},
	} {
		var body bytes.Buffer
		if err := part.fill(ctx, &body); err != nil {
			// Users make a dump when something is wrong: a part that fails must not prevent the others.
			fmt.Fprintf(&body, "\ncould not get %s: %v\n", part.name, err)
		}
		hdr := &tar.Header{Name: "longshore-dump/" + part.name, Mode: 0o600, Size: int64(body.Len()), ModTime: time.Now()}
		if err := tw.WriteHeader(hdr); err != nil {
			return fmt.Errorf("dump %s: %w", part.name, err)
		}
		if _, err := tw.Write(body.Bytes()); err != nil {
			return fmt.Errorf("dump %s: %w", part.name, err)
		}
	}
	if err := tw.Close(); err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	if err := zip.Close(); err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	_, err := chunks(func(data []byte) error { return stream.Send(&longshorev1.DumpResponse{Data: data}) }).Write(out.Bytes())
	return err
}

func (s *nodeServer) dumpVersion(ctx context.Context, w io.Writer) error {
	v, err := s.Version(ctx, nil)
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(v)
}

func (s *nodeServer) dumpConfig(_ context.Context, w io.Writer) error {
	if s.srv.o.Config == nil {
		return nil
	}
	text, err := s.srv.o.Config()
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text)
	return err
}

func (s *nodeServer) dumpDoctor(ctx context.Context, w io.Writer) error {
	if s.srv.o.Doctor == nil {
		return nil
	}
	return json.NewEncoder(w).Encode(s.srv.o.Doctor(ctx, false))
}

func (s *nodeServer) dumpObjects(ctx context.Context, w io.Writer) error {
	sandboxes, err := s.srv.all.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return err
	}
	containers, err := s.srv.all.Containers(ctx, core.Filter{})
	if err != nil {
		return err
	}
	raw, err := view.JSON(map[string]any{"sandboxes": sandboxes, "containers": containers}, nil, false)
	if err != nil {
		return err
	}
	_, err = w.Write(raw)
	return err
}

func (s *nodeServer) dumpEvents(ctx context.Context, w io.Writer) error {
	last, err := s.srv.all.LastSeq(ctx)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(w)
	from := max(s.srv.oldest(ctx, last), max(last, dumpEvents)-dumpEvents)
	for e, err := range s.srv.eventsFrom(ctx, from, last, false) {
		if err != nil {
			return err
		}
		if err := enc.Encode(e); err != nil {
			return err
		}
	}
	return nil
}

func toFindings(list []Finding) []*longshorev1.Finding {
	var out []*longshorev1.Finding
	for _, f := range list {
		out = append(out, &longshorev1.Finding{Name: f.Name, Status: string(f.Status), Detail: f.Detail, Hint: f.Hint})
	}
	return out
}
