package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/face/docker/translate"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/solo"
	stranslate "github.com/longshore/longshore/internal/solo/translate"
)

// created is the answer to a create request.
type created struct {
	ID       string `json:"Id"`
	Warnings []string
}

func (f *Face) create(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := r.Context()
	if r.ContentLength == 0 {
		return invalid.Errorf("invalid JSON: got EOF while reading request body")
	}
	body := &translate.Create{}
	if err := r.Decode(body); err != nil {
		return err
	}
	name := r.Get("name")
	if len(name) > 0 && name[0] == '/' {
		name = name[1:]
	}
	if name != "" && !stranslate.ValidName(name) {
		return invalid.Errorf("Invalid container name (%s), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed", r.Get("name"))
	}
	if err := body.Complete(translate.Node{API: r.API, Unified: f.o.Unified != nil && f.o.Unified()}); err != nil {
		return err
	}
	img, err := f.image(ctx, body.Image)
	if err != nil {
		return err
	}
	body.Merge(img)
	warnings := []string{}
	if want := r.Get("platform"); want != "" {
		p, err := platforms.Parse(want)
		if err != nil {
			return invalid.Errorf("%v", err)
		}
		if !platforms.OnlyStrict(p).Match(img.Config.Platform) {
			return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("image with reference %s was found but its platform (%s) does not match the specified platform (%s)",
				body.Image, platforms.Format(img.Config.Platform), want))
		}
	}
	c, err := f.make(ctx, name, body, img)
	if errors.Is(err, fs.ErrNotExist) && slices.ContainsFunc(body.HostConfig.Mounts, func(m dockertypes.Mount) bool { return m.VolumeOptions != nil && m.VolumeOptions.Subpath != "" }) {
		return invalid.Errorf("cannot access path %s", dockerhttp.Text(err))
	}
	if errdefs.IsNotFound(err) {
		return invalid.Errorf("%s", dockerhttp.Text(err)) // at 404, docker's command line pulls the image
	}
	if err != nil {
		return f.conflict(ctx, err)
	}
	warnings = append(warnings, c.Warnings...)
	return dockerhttp.Reply(w, http.StatusCreated, created{string(c.ID), warnings})
}

// image finds an image of a container.
func (f *Face) image(ctx context.Context, name string) (core.Image, error) {
	img, err := f.own.Images.Get(ctx, name)
	if errdefs.IsNotFound(err) {
		return img, errdefs.ErrNotFound.WithMessage("No such image: " + withTag(name))
	}
	if errdefs.IsInvalidArgument(err) {
		err = invalid.Plainf("invalid reference format")
	}
	return img, err
}

// make creates a container of a completed request.
func (f *Face) make(ctx context.Context, name string, body *translate.Create, img core.Image) (core.Container, error) {
	req, err := body.Request(name, f.networkName)
	if err != nil {
		return core.Container{}, err
	}
	if err := f.sources(&req); err != nil {
		return core.Container{}, err
	}
	images := make([]core.ImageMount, 0, len(req.Mounts.Images))
	for _, m := range req.Mounts.Images {
		found, err := f.image(ctx, m.Name)
		if err != nil {
			return core.Container{}, err
		}
		images = append(images, core.ImageMount{Image: found.ID, SubPath: m.Subpath})
	}
	for _, link := range req.EndpointLinks {
		target, _, _ := strings.Cut(link, ":")
		if _, err := f.find(ctx, target); err == nil && !slices.Contains(req.Links, link) { // one that does not exist is no error in dockerd
			req.Links = append(req.Links, link)
		}
	}
	p, err := f.solo.Prepare(ctx, req.CreateRequest)
	if err != nil {
		return core.Container{}, err
	}
	if attach := p.Sandbox.Network.Attached(); req.Interface != "" && len(attach) > 0 {
		attach[0].Interface = req.Interface
		p.Sandbox.Network.Attach = attach
	}
	body.Joined(req.CreateRequest)
	if p.Face, err = json.Marshal(body); err != nil {
		return core.Container{}, err
	}
	p.ShortName, p.Sandbox.Cgroup.Parent = body.Hostname == "", req.CgroupParent
	p.Change = func(cfg *core.ContainerConfig) {
		for i, v := range cfg.Volumes {
			if more, ok := req.Mounts.Volumes[v.Target]; ok {
				cfg.Volumes[i].Options = more.Options
				if cfg.Volumes[i].Labels == nil {
					cfg.Volumes[i].Labels = more.Labels
				}
			}
		}
		cfg.Images = images
		cfg.Spec = changed(cfg.Spec, func(s *specs.Spec, r core.Rootfs) {
			req.Spec(s)
			for i, m := range req.Mounts.Images {
				mount := ocispec.ImageMount(m.Target, i)
				mount.Source = r.Images[i]
				ocispec.AddBeforeInner(s, []specs.Mount{mount})
			}
		})
	}
	c, err := p.Create(ctx, img)
	if errdefs.IsNotFound(err) && name != "" {
		// The container of that name, or another one that this one needs, was removed meanwhile.
		err = errdefs.ErrAborted.WithMessage(dockerhttp.Text(err) + ": try again")
	}
	return c, err
}

// changed returns a SpecFunc that also makes a change.
func changed(base core.SpecFunc, change func(*specs.Spec, core.Rootfs)) core.SpecFunc {
	return func(ctx context.Context, r core.Rootfs) (*specs.Spec, []byte, error) {
		s, data, err := base(ctx, r)
		if err == nil && s != nil {
			change(s, r)
		}
		return s, data, err
	}
}

// dockerSockets are the paths at which clients look for Docker's socket.
var dockerSockets = []string{"/var/run/docker.sock", "/run/docker.sock"} //nolint:gochecknoglobals // a constant list

// sources makes the missing directories of binds, and leads the binds of Docker's socket to this face's.
func (f *Face) sources(req *translate.Request) error {
	for _, m := range req.GetMounts() {
		if slices.Contains(dockerSockets, m.GetSource()) {
			m.Source = f.o.Config.Socket
		}
	}
	for _, dir := range req.Mounts.Make {
		if slices.Contains(dockerSockets, dir) {
			continue
		}
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("error while creating mount source path '%s': %w", dir, err)
			}
		}
	}
	for _, m := range req.GetMounts() {
		if m.GetByMount() && len(m.GetSource()) > 0 && m.GetSource()[0] == '/' {
			if _, err := os.Stat(m.GetSource()); errors.Is(err, fs.ErrNotExist) {
				return invalid.Errorf("invalid mount config for type \"bind\": bind source path does not exist: %s", m.GetSource())
			}
		}
	}
	return nil
}

// portTaken gives the error of a host port in use dockerd's words, which clients match, and no class. It returns nil for other errors.
func portTaken(err error) error {
	var port *core.PortError
	if !errors.As(err, &port) {
		return nil
	}
	ip := port.HostIP
	if !ip.IsValid() {
		ip = netip.IPv4Unspecified()
	}
	at := netip.AddrPortFrom(ip, port.Host)
	const prefix = "failed to set up container networking: driver failed programming external connectivity: "
	if port.Process {
		return fmt.Errorf("%sfailed to bind host port %v: address already in use", prefix, at)
	}
	return fmt.Errorf("%sBind for %v failed: port is already allocated", prefix, at)
}

// conflict gives the error of a name in use dockerd's words, which clients match.
func (f *Face) conflict(ctx context.Context, err error) error {
	if port := portTaken(err); port != nil {
		return port
	}
	var used solo.NameInUseError
	if !errors.As(err, &used) {
		return err
	}
	id := used.Container
	if c, ferr := f.own.ContainerByKey(ctx, core.Key(used.Name)); ferr == nil {
		id = c.ID
	}
	return errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf(
		"Conflict. The container name \"/%s\" is already in use by container \"%s\". You have to remove (or rename) that container to be able to reuse that name.", used.Name, id))
}

// stopRequest returns the origin of a request that ends a container.
func stopRequest(call string) core.StopRequest {
	return core.StopRequest{Owner: core.OwnerDocker, Call: "docker " + call, At: time.Now()}
}
