package solo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/logs/driver"
	"github.com/longshore/longshore/internal/solo/translate"
)

// The log of a container: the size of a file, and how many files.
const (
	logBytes = int64(16 << 20)
	logFiles = int32(3)
)

// Prepared is a checked request for a container, which Create makes.
type Prepared struct {
	// Face becomes Record.Face.
	Face json.RawMessage
	// Change, if set, changes the container's configuration before it is created.
	Change func(*core.ContainerConfig)
	// Images are those that the request mounts, in its order.
	Images []core.Image
	// Sandbox is the configuration of the container's sandbox.
	Sandbox core.SandboxConfig
	// ShortName makes the beginning of the container's ID its host name if the request has none.
	ShortName bool

	s   *Service
	req *longshorev1.CreateRequest
}

// Prepare checks a request for a container, and completes it with the namespaces, volumes and links of other containers.
func (s *Service) Prepare(ctx context.Context, req *longshorev1.CreateRequest) (*Prepared, error) {
	if err := s.volumesFrom(ctx, req); err != nil {
		return nil, err
	}
	if err := s.joinContainers(ctx, req); err != nil {
		return nil, err
	}
	cfg, err := translate.Sandbox(req)
	if err != nil {
		return nil, err
	}
	if err := s.checkNetwork(ctx, cfg, req.GetPublishAll()); err != nil {
		return nil, err
	}
	if err := translate.Check(req); err != nil {
		return nil, err
	}
	if err := s.links(ctx, req, &cfg); err != nil {
		return nil, err
	}
	return &Prepared{s: s, req: req, Sandbox: cfg}, checkReclaim(s.o.Unified, req)
}

// Create creates the sandbox and the container, of an image. After an error nothing of them is left, also no log.
func (p *Prepared) Create(ctx context.Context, img core.Image) (core.Container, error) {
	if p.req.GetPublishAll() {
		more, err := translate.Exposed(&img.Config.Config, p.req, p.Sandbox.Network.Ports)
		if err != nil {
			return core.Container{}, err
		}
		p.Sandbox.Network.Ports = append(p.Sandbox.Network.Ports, more...)
	}
	c, err := p.create(ctx, img)
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		p.s.settleHolders(clean, &core.Sandbox{Config: p.Sandbox}) // they may have ended meanwhile
	}
	return c, err
}

func (p *Prepared) create(ctx context.Context, img core.Image) (core.Container, error) {
	s, req, cfg := p.s, p.req, p.Sandbox
	if cfg.Key == "" {
		cfg.Key = translate.MadeUpName(req.GetImage())
	}
	ownName := cfg.Hostname == "" && cfg.Namespaces.UTS.Mode != core.Host && cfg.Namespaces.Net.Mode != core.Joined
	if ownName && !p.ShortName {
		cfg.Hostname = translate.Hostname(cfg.Key)
	}
	cfg.Durable = durable(req)
	var err error
	if cfg.Users.UserNeeds, err = translate.UserNeeds(req, img); err != nil {
		return core.Container{}, err
	}
	want := cfg
	if s.o.Rest {
		cfg = resting(cfg)
	}
	var log string
	sb, c, err := s.own.CreatePair(ctx, engine.Pair{Sandbox: cfg, ShortName: ownName && p.ShortName, Container: func(sandbox core.ID) (core.ContainerConfig, error) {
		log = filepath.Join(s.o.LogDir, string(sandbox)+".log")
		return p.containerConfig(cfg.Key, img, log)
	}})
	switch {
	case errdefs.IsAlreadyExists(err) && sb.ID != "":
		return c, NameInUseError{string(cfg.Key), c.ID, fmt.Errorf("the name %q is in use by %s: %w", cfg.Key, sb.ID.Short(), errdefs.ErrAlreadyExists)}
	case err != nil && log != "":
		err = errors.Join(err, removeLogFiles(log))
	}
	if err == nil && s.o.Rest {
		c, err = s.rest(ctx, c, want)
	}
	return c, err
}

// unfinished is the Data of a sandbox without the network of its request.
const unfinished = "unfinished"

// restCall is the origin of the end of a container that waits for its first start.
const restCall = "longshore agent: the container waits for its start"

// resting returns a configuration without addresses, ports and the network namespace of another container.
func resting(cfg core.SandboxConfig) core.SandboxConfig {
	if cfg.Namespaces.Net.Mode == core.Joined {
		cfg.Namespaces.Net = core.Namespace{Mode: core.Shared}
	}
	if cfg.Namespaces.Net.Mode == core.Shared {
		cfg.Network = core.NetworkConfig{Name: core.NetworkNone, DNS: cfg.Network.DNS}
	}
	cfg.Data = []byte(unfinished)
	return cfg
}

// rest stops the sandbox of a new container, which waits for its start, and gives it the wanted network.
// After an error nothing of the container is left.
func (s *Service) rest(ctx context.Context, c core.Container, want core.SandboxConfig) (core.Container, error) {
	a := core.StopRequest{Owner: s.o.Owner, Call: restCall, At: time.Now()}
	var now time.Duration
	err := s.own.StopSandbox(ctx, c.Sandbox, engine.StopOptions{Grace: &now, Request: a})
	if err == nil {
		err = s.own.Attachments.Arrange(ctx, c.Sandbox, want)
	}
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		return c, errors.Join(err, s.Remove(clean, c, Removal{engine.RemoveOptions{Force: true, Request: a}, true}))
	}
	warnings := c.Warnings
	c, err = s.own.Container(ctx, c.ID)
	c.Warnings = warnings
	return c, err
}

// NameInUseError is the error of a create under another container's name.
type NameInUseError struct {
	Name      string
	Container core.ID // "" if it is not known
	error
}

// Unwrap returns an error of the class AlreadyExists.
func (e NameInUseError) Unwrap() error { return e.error }

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
func (p *Prepared) containerConfig(key core.Key, img core.Image, log string) (core.ContainerConfig, error) {
	s, req := p.s, p.req
	if err := os.MkdirAll(s.o.LogDir, 0o700); err != nil {
		return core.ContainerConfig{}, fmt.Errorf("make the log directory: %w", err)
	}
	rec := Record{
		Image: imageName(img, req.GetImage()), AutoRemove: req.GetAutoRemove(), Privileged: req.GetPrivileged(), Later: !req.GetStart() && !req.GetHold(),
		OnUnhealthy: req.GetOnUnhealthy(), Settings: settingsOf(req), Face: p.Face,
	}
	var err error
	if rec.Health, err = healthOf(req, img); err != nil {
		return core.ContainerConfig{}, err
	}
	if rec.Request, err = requestJSON(req); err != nil {
		return core.ContainerConfig{}, err
	}
	cfg, err := translate.Container(req, key, img, p.Images)
	if err != nil {
		return core.ContainerConfig{}, err
	}
	cfg.Durable = durable(req)
	if !req.GetHold() && !req.GetNoLog() {
		rec.Log = log
		size, files, err := driver.Size(req.GetLogOptions())
		if err != nil {
			return core.ContainerConfig{}, err
		}
		cfg.IO.Sinks = []core.Sink{{
			Format: core.FormatCRI, Stdout: true, Stderr: true, Path: log,
			MaxBytes: cmp.Or(req.GetLogBytes(), size, logBytes), MaxFiles: int(cmp.Or(req.GetLogFiles(), files, logFiles)),
		}}
	}
	if cfg.LogDriver, err = logDriver(req, img); err != nil {
		return core.ContainerConfig{}, err
	}
	for _, v := range cfg.Volumes {
		if v.Labels[core.AnonymousLabel] != "" {
			rec.Anonymous = append(rec.Anonymous, v.Name)
		}
	}
	if cfg.Data, err = json.Marshal(rec); err != nil {
		return core.ContainerConfig{}, fmt.Errorf("create %s: %w", key, err)
	}
	if s.o.Rest {
		cfg.Rest = &core.StopRequest{Owner: s.o.Owner, Call: restCall, At: time.Now()}
	}
	if p.Change != nil {
		p.Change(&cfg)
	}
	return cfg, nil
}

// logDriver returns the log driver of a request, nil for none. It sends the lines of the container's log.
func logDriver(req *longshorev1.CreateRequest, img core.Image) (*core.LogDriver, error) {
	image, command := req.GetImage(), strings.TrimSpace(req.GetEntrypoint()+" "+strings.Join(req.GetCommand(), " "))
	if driver.Local(req.GetLogDriver()) {
		return &core.LogDriver{Name: req.GetLogDriver(), Image: image, Command: command}, nil
	}
	d, err := driver.Record(req.GetLogDriver(), req.GetLogOptions(), req.GetLabels(), slices.Concat(img.Config.Config.Env, req.GetEnv()))
	if err != nil {
		return nil, err
	}
	d.Image, d.Command = image, command
	return d, nil
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
