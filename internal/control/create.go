package control

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/grpcerr"
	"github.com/longshore/longshore/internal/health"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/sysctl"
)

// record is the content of a container's Data.
type record struct {
	Image      string `json:"image"` // as the user named it, resolved to a full name
	AutoRemove bool   `json:"auto_remove,omitempty"`
	Privileged bool   `json:"privileged,omitempty"`
	Log        string `json:"log,omitempty"` // path of the output, "" when the output is held
	// Anonymous are the volumes without a name that were made for the container.
	Anonymous []string `json:"anonymous,omitempty"`
	Later     bool     `json:"later,omitempty"` // its user starts it in a call of its own, whenever that is
	// Health is its health check in full, nil for none: its image may be gone when an agent comes back.
	Health      *health.Check `json:"health,omitempty"`
	OnUnhealthy string        `json:"on_unhealthy,omitempty"`
	Asked       asked         `json:"asked"`
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

// defaultGrace is the time between the stop signal and SIGKILL for our containers.
const defaultGrace = 10 * time.Second

// Create creates a sandbox with one container in it.
func (s *containerServer) Create(req *longshorev1.CreateRequest, stream grpc.ServerStreamingServer[longshorev1.CreateResponse]) error {
	ctx := stream.Context()
	if err := s.srv.volumesFrom(ctx, req); err != nil {
		return err
	}
	cfg, err := sandboxConfig(req)
	if err != nil {
		return err
	}
	if err := s.srv.checkNetwork(ctx, cfg, req.GetPublishAll()); err != nil {
		return err
	}
	if err := checkCreate(req); err != nil {
		return err
	}
	img, err := s.srv.imageFor(ctx, req, stream)
	if err != nil {
		return err
	}
	if req.GetPublishAll() {
		more, err := exposed(&img.Config.Config, req, cfg.Network.Ports)
		if err != nil {
			return err
		}
		cfg.Network.Ports = append(cfg.Network.Ports, more...)
	}
	c, err := s.srv.create(ctx, req, cfg, img)
	if err != nil {
		return startFailure(err)
	}
	if req.GetStart() {
		if err := s.srv.started(ctx, s.srv.own, c.ID); err != nil {
			s.srv.dropIfAuto(ctx, c)
			return startFailure(err)
		}
	}
	return stream.Send(&longshorev1.CreateResponse{Step: &longshorev1.CreateResponse_Created{Created: &longshorev1.Created{
		Id: string(c.ID), Sandbox: string(c.Sandbox), Name: string(c.Key), Warnings: c.Warnings,
	}}})
}

// create carries out the request. An error leaves nothing, no log either.
func (s *Server) create(ctx context.Context, req *longshorev1.CreateRequest, cfg core.SandboxConfig, img core.Image) (core.Container, error) {
	if cfg.Key == "" {
		cfg.Key = madeUpName(req.GetImage())
	}
	if cfg.Hostname == "" && cfg.Namespaces.UTS.Mode != core.Host {
		cfg.Hostname = hostnameOf(cfg.Key)
	}
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

// containerConfig returns the container that a request asks for.
func (s *Server) containerConfig(req *longshorev1.CreateRequest, key core.Key, img core.Image, log string) (core.ContainerConfig, error) {
	if err := os.MkdirAll(s.o.LogDir, 0o700); err != nil {
		return core.ContainerConfig{}, fmt.Errorf("make the log directory: %w", err)
	}
	io := core.IO{TTY: req.GetTty(), Size: toSize(req.GetSize()), Stdin: stdinMode(req), Hold: req.GetHold()}
	rec := record{Image: imageName(img, req.GetImage()), AutoRemove: req.GetAutoRemove(), Privileged: req.GetPrivileged(), Later: !req.GetStart() && !req.GetHold()}
	var err error
	if rec.Health, err = healthOf(req, img); err != nil {
		return core.ContainerConfig{}, err
	}
	rec.OnUnhealthy, rec.Asked = req.GetOnUnhealthy(), askedOf(req)
	if !req.GetHold() && !req.GetNoLog() {
		rec.Log = log
		io.Sinks = []core.Sink{{
			Format: core.FormatCRI, Stdout: true, Stderr: true, Path: log,
			MaxBytes: cmp.Or(req.GetLogBytes(), logBytes), MaxFiles: int(cmp.Or(req.GetLogFiles(), logFiles)),
		}}
	}
	volumes := volumeMounts(append(slices.Clone(req.GetMounts()), declared(img, req)...))
	for _, v := range volumes {
		if v.Labels[core.AnonymousLabel] != "" {
			rec.Anonymous = append(rec.Anonymous, v.Name)
		}
	}
	cdi, err := cdiNames(req)
	if err != nil {
		return core.ContainerConfig{}, err
	}
	data, err := json.Marshal(rec)
	if err != nil {
		return core.ContainerConfig{}, fmt.Errorf("create %s: %w", key, err)
	}
	spec, err := specFunc(req)
	if err != nil {
		return core.ContainerConfig{}, err
	}
	cfg := core.ContainerConfig{
		Key: key, Labels: req.GetLabels(), Data: data,
		Root:    core.Root{Image: img.ID, ReadOnly: req.GetReadOnly()},
		Volumes: volumes,
		CDI:     cdi,
		Spec:    spec,
		IO:      io,
		Stop:    stopOf(req), Init: req.GetInit(),
	}
	doc, asked := req.GetLabels()[core.GrantAnnotation]
	ocispec.Granted{
		Document: doc, Asked: asked, Runtime: req.GetRuntime(), Image: &img, Identity: core.Identity{Pod: string(key), Container: string(key), Image: req.GetImage()},
	}.Apply(&cfg)
	return cfg, nil
}

// dropIfAuto removes a container that could not be started, if its user asked for its removal
// after its end.
func (s *Server) dropIfAuto(ctx context.Context, c core.Container) {
	if !recordOf(c).AutoRemove {
		return
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	if err := s.removeOwn(clean, c, removal{engine.RemoveOptions{Force: true, Request: stopRequest(ctx, "longshore run --rm")}, true}); err != nil {
		s.o.Logger.WarnContext(ctx, "could not remove a container that did not start; remove it with longshore rm", "container", string(c.ID), "error", err)
	}
}

func stdinMode(req *longshorev1.CreateRequest) core.StdinMode {
	switch {
	case req.GetStdin() && req.GetStdinOnce():
		return core.StdinOnce
	case req.GetStdin():
		return core.StdinOpen
	}
	return core.StdinClosed
}

func stopOf(req *longshorev1.CreateRequest) core.Stop {
	st := core.Stop{Signal: req.GetStopSignal(), Grace: defaultGrace}
	if g := req.GetStopGrace(); g != nil {
		st.Grace = g.AsDuration()
	}
	return st
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
		is := err == nil && isFor(img, req.GetPlatform())
		switch {
		case is, err != nil && !errdefs.IsNotFound(err), err != nil && req.GetPull() == "never":
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
		_ = stream.Send(&longshorev1.CreateResponse{Step: &longshorev1.CreateResponse_Pull{Pull: toProgress(p)}})
	}
	img, err := s.own.Images.Pull(ctx, req.GetImage(), opts)
	mu.Lock()
	defer mu.Unlock()
	return img, err
}

// isFor reports whether an image is for a platform as users write it; every image is for "".
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

// validName reports whether s can be a name of ours, which is also a file name and a host name.
func validName(s string) bool {
	for i := range len(s) {
		letter := 'a' <= s[i] && s[i] <= 'z' || 'A' <= s[i] && s[i] <= 'Z' || '0' <= s[i] && s[i] <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("_.-", rune(s[i]))) {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

func checkCreate(req *longshorev1.CreateRequest) error {
	if req.GetName() != "" && !validName(req.GetName()) {
		return invalid.Errorf("name %q: letters, digits, _ . - only, a letter or digit first, at most 128", req.GetName())
	}
	switch req.GetPull() {
	case "", "missing", "always", "never":
	default:
		return invalid.Errorf("pull %q is none of missing, always, never", req.GetPull())
	}
	if req.GetImage() == "" {
		return invalid.Errorf("an image is needed")
	}
	if req.GetCpus() < 0 || req.GetCpus() > 1e4 {
		return invalid.Errorf("cpus %v is out of range", req.GetCpus())
	}
	for _, e := range req.GetEnv() {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" || strings.ContainsRune(e, 0) {
			return invalid.Errorf("environment variable %q is not NAME=value", name)
		}
	}
	if req.GetStopSignal() != "" {
		if _, err := ocispec.Signal(req.GetStopSignal()); err != nil {
			return err
		}
	}
	if _, err := graceOf(req.GetStopGrace()); err != nil {
		return err
	}
	if req.GetWorkdir() != "" && !path.IsAbs(req.GetWorkdir()) {
		return invalid.Errorf("workdir %q is not an absolute path", req.GetWorkdir())
	}
	if req.GetPublishAll() && !ownNetwork(req) {
		return invalid.Errorf("ports cannot be published with network %s", req.GetNetwork())
	}
	if req.GetLogBytes() < 0 || req.GetLogFiles() < 0 || req.GetLogFiles() > maxLogFiles {
		return invalid.Errorf("a log has at most %d files, and no negative size", maxLogFiles)
	}
	return checkMounts(req)
}

// maxLogFiles bounds the files of one log.
const maxLogFiles = 100

func checkMounts(req *longshorev1.CreateRequest) error {
	seen := map[string]bool{}
	checkTarget := func(asked string) error {
		target := path.Clean(asked)
		switch {
		case !path.IsAbs(asked) || target == "/":
			return invalid.Errorf("mount target %q is not an absolute path below /", asked)
		case seen[target]:
			return invalid.Errorf("mount target %q is set twice", asked)
		}
		seen[target] = true
		return nil
	}
	for _, t := range req.GetTmpfs() {
		if err := checkTarget(t.GetTarget()); err != nil {
			return err
		}
	}
	for _, m := range req.GetMounts() {
		if err := checkTarget(m.GetTarget()); err != nil {
			return err
		}
		switch {
		case m.GetAnonymous() && (m.GetSource() != "" || m.GetSubPath() != ""):
			return invalid.Errorf("mount %q: a volume without a name has no source", m.GetTarget())
		case m.GetAnonymous():
			continue
		case m.GetSource() == "":
			return invalid.Errorf("mount %q has no source", m.GetTarget())
		case m.GetPropagation() != "" && !path.IsAbs(m.GetSource()):
			return invalid.Errorf("mount %q: only a path of the host has a propagation", m.GetTarget())
		}
		if path.IsAbs(m.GetSource()) {
			if m.GetSubPath() != "" {
				return invalid.Errorf("mount source %q has a sub-path but is not a volume", m.GetSource())
			}
			if _, err := os.Stat(m.GetSource()); err != nil {
				return invalid.Errorf("mount source: %v", err)
			}
		} else if !validName(m.GetSource()) {
			return invalid.Errorf("mount source %q is neither an absolute path nor a volume's name", m.GetSource())
		}
	}
	return nil
}

// sandboxConfig returns the sandbox that a request asks for.
func sandboxConfig(req *longshorev1.CreateRequest) (core.SandboxConfig, error) {
	ports, err := toCorePorts(req.GetPorts())
	if err != nil {
		return core.SandboxConfig{}, err
	}
	cfg := core.SandboxConfig{
		Key: core.Key(req.GetName()), Labels: req.GetLabels(), Runtime: req.GetRuntime(), Hostname: req.GetHostname(),
		Namespaces: core.Namespaces{Net: core.Namespace{Mode: core.Shared}, UTS: core.Namespace{Mode: core.Shared}},
		Network: core.NetworkConfig{
			Ports: ports,
			DNS:   core.DNS{Servers: req.GetDns().GetServers(), Searches: req.GetDns().GetSearches(), Options: req.GetDns().GetOptions()},
		},
	}
	own := sysctl.AnyUser()
	switch req.GetNetwork() {
	case "", "default", "bridge":
		cfg.Sysctls = own
	case core.NetworkNone:
		cfg.Network.Name = core.NetworkNone
	case "host":
		cfg.Namespaces.Net.Mode = core.Host
		if req.GetHostname() == "" {
			cfg.Namespaces.UTS.Mode = core.Host
		}
	default:
		cfg.Network.Name, cfg.Sysctls = req.GetNetwork(), own
	}
	if cfg.Network.Name == core.NetworkNone || cfg.Namespaces.Net.Mode == core.Host {
		if len(ports) > 0 {
			return cfg, invalid.Errorf("ports cannot be published with network %s", req.GetNetwork())
		}
	}
	if cfg.Network.Hosts, err = hostLines(req); err != nil {
		return cfg, err
	}
	if err := namespaces(&cfg, req); err != nil {
		return cfg, err
	}
	if err := checkUserns(req, &cfg); err != nil {
		return cfg, err
	}
	return cfg, errors.Join(address(&cfg, req), further(&cfg, req))
}

func toCorePorts(ports []*longshorev1.Port) ([]core.Port, error) {
	var out []core.Port
	for _, p := range ports {
		q := core.Port{Proto: p.GetProtocol(), Host: uint16(p.GetHost()), Container: uint16(p.GetContainer())}
		switch p.GetProtocol() {
		case "":
			q.Proto = "tcp"
		case "tcp", "udp", "sctp":
		default:
			return nil, invalid.Errorf("port protocol %q is none of tcp, udp, sctp", p.GetProtocol())
		}
		if n := p.GetContainer(); n < 1 || n > 65535 {
			return nil, invalid.Errorf("port %d is not between 1 and 65535", n)
		}
		if n := p.GetHost(); n > 65535 {
			return nil, invalid.Errorf("host port %d is not between 1 and 65535, or 0 to choose one", n)
		}
		if p.GetHostIp() != "" {
			ip, err := netip.ParseAddr(p.GetHostIp())
			if err != nil {
				return nil, invalid.Errorf("host address %q: %v", p.GetHostIp(), err)
			}
			q.HostIP = ip
		}
		out = append(out, q)
	}
	return out, nil
}

func volumeMounts(mounts []*longshorev1.Mount) []core.VolumeMount {
	var out []core.VolumeMount
	for _, m := range mounts {
		if !path.IsAbs(m.GetSource()) {
			v := core.VolumeMount{Name: m.GetSource(), Target: path.Clean(m.GetTarget()), ReadOnly: m.GetReadOnly(), SubPath: m.GetSubPath(), NoCopy: m.GetNoCopy()}
			if m.GetAnonymous() {
				var r [32]byte
				_, _ = rand.Read(r[:]) // never fails
				v.Name, v.Labels = hex.EncodeToString(r[:]), map[string]string{core.AnonymousLabel: "true"}
			}
			out = append(out, v)
		}
	}
	return out
}

// declared are the volumes that the image declares at places where the request mounts nothing.
func declared(img core.Image, req *longshorev1.CreateRequest) (list []*longshorev1.Mount) {
	taken := map[string]bool{}
	for _, m := range req.GetMounts() {
		taken[path.Clean(m.GetTarget())] = true
	}
	for _, t := range req.GetTmpfs() {
		taken[path.Clean(t.GetTarget())] = true
	}
	for _, target := range ocispec.Volumes(&img.Config.Config) {
		if !taken[target] {
			list = append(list, &longshorev1.Mount{Target: target, Anonymous: true})
		}
	}
	return list
}

// madeUpName returns the image's last name component and a few random digits.
func madeUpName(image string) core.Key {
	base, _, _ := strings.Cut(path.Base(image), "@")
	base, _, _ = strings.Cut(base, ":")
	var r [4]byte
	_, _ = rand.Read(r[:]) // never fails
	base = regexp.MustCompile(`[^a-zA-Z0-9_.-]`).ReplaceAllString(base, "")
	base = strings.TrimLeft(base, "_.-")
	if base == "" {
		base = "container"
	}
	return core.Key(base + "-" + hex.EncodeToString(r[:]))
}

// hostnameOf makes a valid host name from a key.
func hostnameOf(key core.Key) string {
	h := strings.ReplaceAll(string(key), "_", "-")
	if len(h) > 63 {
		h = h[:63]
	}
	return strings.TrimRight(h, ".-")
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
