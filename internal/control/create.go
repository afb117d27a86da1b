package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/access"
	"github.com/longshore/longshore/internal/control/translate"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/grpcerr"
	"github.com/longshore/longshore/internal/health"
	"github.com/longshore/longshore/internal/invalid"
)

// record is the content of a container's Data.
type record struct {
	Image      string `json:"image"` // as the user named it, resolved to a full name
	AutoRemove bool   `json:"auto_remove,omitempty"`
	Privileged bool   `json:"privileged,omitempty"`
	Log        string `json:"log,omitempty"` // path of the output, "" if none is written
	// Anonymous are the volumes without a name that were made for the container.
	Anonymous []string `json:"anonymous,omitempty"`
	Later     bool     `json:"later,omitempty"` // created without a start: a later call starts it
	// Health is the complete health check, nil for none: a later agent may not have the image any more.
	Health      *health.Check `json:"health,omitempty"`
	OnUnhealthy string        `json:"on_unhealthy,omitempty"`
	Settings    settings      `json:"asked"`
	// Request is the whole request without its credentials, in the JSON of protobuf: longshore unit --new makes flags of it.
	Request json.RawMessage `json:"request,omitempty"`
}

// recordOf returns the record of a container of ours, and a zero record for others.
func recordOf(c core.Container) record {
	var r record
	if c.Owner == core.OwnerCLI && json.Unmarshal(c.Data, &r) != nil {
		return record{}
	}
	return r
}

// The log of a container of ours: the size of a file, and how many files.
const (
	logBytes = int64(16 << 20)
	logFiles = int32(3)
)

// Create creates a sandbox with one container in it.
func (s *containerServer) Create(req *longshorev1.CreateRequest, stream grpc.ServerStreamingServer[longshorev1.CreateResponse]) error {
	ctx := stream.Context()
	if err := s.srv.volumesFrom(ctx, req); err != nil {
		return err
	}
	if err := s.joinContainers(ctx, req); err != nil {
		return err
	}
	cfg, err := translate.Sandbox(req)
	if err != nil {
		return err
	}
	if err := s.srv.checkNetwork(ctx, cfg, req.GetPublishAll()); err != nil {
		return err
	}
	if err := translate.Check(req); err != nil {
		return err
	}
	if err := s.links(ctx, req, &cfg); err != nil {
		return err
	}
	if err := checkReclaim(s.srv.o.Unified, req); err != nil {
		return err
	}
	img, err := s.srv.imageFor(ctx, req, stream)
	if err != nil {
		return err
	}
	if req.GetPublishAll() {
		more, err := translate.Exposed(&img.Config.Config, req, cfg.Network.Ports)
		if err != nil {
			return err
		}
		cfg.Network.Ports = append(cfg.Network.Ports, more...)
	}
	c, err := s.srv.create(ctx, req, cfg, img)
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		settleHolders(clean, s.srv, &core.Sandbox{Config: cfg}) // they may have ended meanwhile
		return startFailure(err)
	}
	if req.GetStart() {
		err := s.startNeeding(ctx, s.srv.own, c)
		if err != nil {
			s.srv.dropIfAuto(ctx, c)
			return startFailure(err)
		}
	}
	return stream.Send(&longshorev1.CreateResponse{Step: &longshorev1.CreateResponse_Created{Created: &longshorev1.Created{
		Id: string(c.ID), Sandbox: string(c.Sandbox), Name: string(c.Key), Warnings: c.Warnings,
	}}})
}

// create creates the sandbox and the container. After an error nothing of them is left, also no log.
func (s *Server) create(ctx context.Context, req *longshorev1.CreateRequest, cfg core.SandboxConfig, img core.Image) (core.Container, error) {
	if cfg.Key == "" {
		cfg.Key = translate.MadeUpName(req.GetImage())
	}
	if cfg.Hostname == "" && cfg.Namespaces.UTS.Mode != core.Host && cfg.Namespaces.Net.Mode != core.Joined {
		cfg.Hostname = translate.Hostname(cfg.Key)
	}
	cfg.Durable = durable(req)
	release, err := s.users(ctx, &cfg)
	if err != nil {
		return core.Container{}, err
	}
	defer release()
	var log string
	sb, c, err := s.own.CreatePair(ctx, engine.Pair{Sandbox: cfg, Container: func(sandbox core.ID) (core.ContainerConfig, error) {
		log = filepath.Join(s.o.LogDir, string(sandbox)+".log")
		return s.containerConfig(req, cfg.Key, img, log)
	}})
	switch {
	case errdefs.IsAlreadyExists(err) && sb.ID != "":
		return c, fmt.Errorf("the name %q is in use by %s: %w", cfg.Key, sb.ID.Short(), errdefs.ErrAlreadyExists)
	case err != nil && log != "":
		err = errors.Join(err, removeLogFiles(log))
	}
	return c, err
}

// checkReclaim refuses settings of memory that cgroup v2 does not have.
func checkReclaim(unified func() bool, req *longshorev1.CreateRequest) error {
	switch {
	case unified == nil || !unified():
		return nil
	case req.MemorySwappiness != nil:
		return fmt.Errorf("cgroup v2 has no memory swappiness: use a limit of memory and swap: %w", errdefs.ErrFailedPrecondition)
	case req.GetOomKillDisable():
		return fmt.Errorf("cgroup v2 cannot disable the OOM killer: use an OOM score: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

// durable reports whether the container of a request outlives a boot of the node: all do but those that
// are removed after their end.
func durable(req *longshorev1.CreateRequest) bool { return !req.GetAutoRemove() && !req.GetHold() }

// containerConfig returns the configuration of the container for a request, with the record that it stores and its log.
func (s *Server) containerConfig(req *longshorev1.CreateRequest, key core.Key, img core.Image, log string) (core.ContainerConfig, error) {
	if err := os.MkdirAll(s.o.LogDir, 0o700); err != nil {
		return core.ContainerConfig{}, fmt.Errorf("make the log directory: %w", err)
	}
	rec := record{
		Image: imageName(img, req.GetImage()), AutoRemove: req.GetAutoRemove(), Privileged: req.GetPrivileged(), Later: !req.GetStart() && !req.GetHold(),
		OnUnhealthy: req.GetOnUnhealthy(), Settings: settingsOf(req),
	}
	var err error
	if rec.Health, err = healthOf(req, img); err != nil {
		return core.ContainerConfig{}, err
	}
	if rec.Request, err = requestJSON(req); err != nil {
		return core.ContainerConfig{}, err
	}
	cfg, err := translate.Container(req, key, img)
	if err != nil {
		return core.ContainerConfig{}, err
	}
	cfg.Durable = durable(req)
	if !req.GetHold() && !req.GetNoLog() {
		rec.Log = log
		cfg.IO.Sinks = []core.Sink{{
			Format: core.FormatCRI, Stdout: true, Stderr: true, Path: log,
			MaxBytes: cmp.Or(req.GetLogBytes(), logBytes), MaxFiles: int(cmp.Or(req.GetLogFiles(), logFiles)),
		}}
	}
	for _, v := range cfg.Volumes {
		if v.Labels[core.AnonymousLabel] != "" {
			rec.Anonymous = append(rec.Anonymous, v.Name)
		}
	}
	if cfg.Data, err = json.Marshal(rec); err != nil {
		return core.ContainerConfig{}, fmt.Errorf("create %s: %w", key, err)
	}
	return cfg, nil
}

// requestJSON returns a request in the JSON of protobuf, without its credentials, the size of a terminal and the start.
func requestJSON(req *longshorev1.CreateRequest) (json.RawMessage, error) {
	kept, ok := proto.Clone(req).(*longshorev1.CreateRequest)
	if !ok {
		return nil, errors.New("a copy of a request has another type")
	}
	kept.Credentials, kept.Size, kept.Start, kept.Hold, kept.StdinOnce = nil, nil, false, false, false
	out, err := protojson.Marshal(kept)
	if err != nil {
		return nil, invalid.Errorf("the request: %v", err)
	}
	return out, nil
}

// dropIfAuto removes a container that could not be started, if its user asked for its removal
// after its end.
func (s *Server) dropIfAuto(ctx context.Context, c core.Container) {
	if !recordOf(c).AutoRemove {
		return
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	if err := s.removeOwn(clean, c, removal{engine.RemoveOptions{Force: true, Request: access.StopRequest(ctx, "longshore run --rm")}, true}); err != nil {
		s.o.Logger.WarnContext(ctx, "could not remove a container that did not start; remove it with longshore rm", "container", string(c.ID), "error", err)
	}
}

// imageName returns the full name for the user's name of an image.
func imageName(img core.Image, name string) string {
	for _, n := range img.Names {
		if n == name || strings.HasSuffix(n, "/"+name) || strings.HasSuffix(n, "/"+name+":latest") {
			return n
		}
	}
	if len(img.Names) == 1 {
		return img.Names[0]
	}
	return name
}

// imageFor finds the image, and pulls it when necessary.
func (s *Server) imageFor(ctx context.Context, req *longshorev1.CreateRequest, stream grpc.ServerStreamingServer[longshorev1.CreateResponse]) (core.Image, error) {
	if req.GetPull() != "always" {
		img, err := s.own.Images.Get(ctx, req.GetImage())
		fits := err == nil && isFor(img, req.GetPlatform())
		switch {
		case fits, err != nil && !errdefs.IsNotFound(err), err != nil && req.GetPull() == "never":
			return img, err
		case req.GetPull() == "never":
			return core.Image{}, fmt.Errorf("image %s for %s: %w", req.GetImage(), req.GetPlatform(), errdefs.ErrNotFound)
		}
	}
	var mu sync.Mutex // serializes Send: progress comes from several blobs at once, a stream takes one sender
	opts := pullOptions(req.GetCredentials())
	opts.Always, opts.Platform = req.GetPull() == "always", req.GetPlatform()
	opts.Progress = func(p core.PullProgress) {
		mu.Lock()
		defer mu.Unlock()
		// If the client has left, ctx ends.
		_ = stream.Send(&longshorev1.CreateResponse{Step: &longshorev1.CreateResponse_Pull{Pull: view.Progress(p)}})
	}
	img, err := s.own.Images.Pull(ctx, req.GetImage(), opts)
	mu.Lock()
	defer mu.Unlock()
	return img, err
}

// isFor reports whether an image is for a platform, in the form of the command line. Every image is for the platform
// "".
func isFor(img core.Image, platform string) bool {
	if platform == "" {
		return true
	}
	want, err := platforms.Parse(platform)
	return err == nil && platforms.OnlyStrict(want).Match(img.Config.Platform)
}

func pullOptions(c *longshorev1.Credentials) core.PullOptions {
	return core.PullOptions{Host: c.GetHost(), Username: c.GetUsername(), Password: c.GetPassword(), Token: c.GetToken()}
}

// startFailure adds to an error the exit status that a shell would show for a program that could
// not be started.
func startFailure(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(grpcerr.Status(err, nil))
	if !ok || st.Code() == codes.Canceled {
		return grpcerr.Status(err, nil)
	}
	with, derr := st.WithDetails(&longshorev1.StartFailure{ExitStatus: int32(core.StartStatus(err))})
	if derr != nil {
		return st.Err()
	}
	return with.Err()
}
