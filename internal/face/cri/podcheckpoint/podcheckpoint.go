// Package podcheckpoint has the calls CheckpointContainer, CheckpointPod and RestorePod of the CRI, and CreateContainer with a checkpoint in
// place of an image. The checkpoint of a pod is a directory: a tar per
// container, as CheckpointContainer writes it, and a file that lists them and is written last. Start at Calls.
package podcheckpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
)

// Calls has the verbs and the parts of the face that the calls need.
type Calls struct {
	Verbs     core.CheckpointVerbs
	Engine    *engine.Client
	Sandbox   func(id string) (*core.Sandbox, error)
	Container func(id string) (*core.Container, error)
	// Config returns the config in the data of a container's record.
	Config func(data []byte) (*v1.ContainerConfig, error)
	// Run makes a sandbox, and Create a container that continues a checkpoint.
	Run func(ctx context.Context, req *v1.RunPodSandboxRequest) (core.Sandbox, error)
	// same says that an earlier call of the same request has made the container.
	Create  func(ctx context.Context, req *v1.CreateContainerRequest) (c core.Container, same bool, err error)
	Request core.StopRequest // of a removal
	Images  Images
	Why     func(context.Context) error // see Able
}

// Able returns the error of a node that makes no checkpoints: without verbs it makes none. why, which may be nil, returns the reason.
func Able(ctx context.Context, verbs core.CheckpointVerbs, why func(context.Context) error, what string) (err error) {
	if verbs != nil {
		why = verbs.Able
	}
	if why != nil {
		err = why(ctx)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s: this node makes no checkpoints: %v: %w", what, err, errdefs.ErrNotImplemented) //nolint:errorlint // one class
	case verbs == nil:
		return fmt.Errorf("%s: this node makes no checkpoints: %w", what, errdefs.ErrNotImplemented)
	}
	return nil
}

const (
	podFile    = "pod.json"
	podVersion = 1
	maxPodFile = 1 << 20
)

// stored is the content of podFile.
type stored struct {
	Version    int      `json:"version"`
	Containers []member `json:"containers"`
}

type member struct {
	Name string `json:"name"`
	File string `json:"file"`
}

// podOptions reads the options of a checkpoint or a restore of a pod: tcp is keep or close.
func podOptions(ctx context.Context, options map[string]string, otherwise core.TCPMode) (core.TCPMode, error) {
	if _, ok := ctx.Deadline(); !ok {
		return "", invalid.Errorf("the call has no deadline")
	}
	for k, v := range options {
		mode, err := core.ParseTCPMode(v)
		if k != "tcp" || err != nil || mode == core.TCPRefuse {
			return "", invalid.Errorf("option %q=%q: only tcp is known, with the values keep and close", k, v)
		}
		otherwise = mode
	}
	return otherwise, nil
}

// CheckpointContainer writes a checkpoint of a container, which continues, as a tar. Its connections are stored, so that a container
// with connections is not refused.
func (c *Calls) CheckpointContainer(ctx context.Context, req *v1.CheckpointContainerRequest) error {
	what := "checkpoint container " + req.GetContainerId()
	if !filepath.IsAbs(req.GetLocation()) {
		return fmt.Errorf("%s: location %q is not absolute: %w", what, req.GetLocation(), errdefs.ErrInvalidArgument)
	}
	ct, err := c.Container(req.GetContainerId())
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	o := core.CheckpointOptions{TCP: core.TCPKeep, FileLocks: true, Timeout: time.Duration(max(req.GetTimeout(), 0)) * time.Second}
	if err := c.Verbs.Checkpoint(ctx, ct.ID, o); err != nil {
		return err
	}
	err = atomicfile.Fill(req.GetLocation(), 0o600, func(f *os.File) error { return c.Verbs.Export(ctx, ct.ID, f) })
	// The files of the container change, and its checkpoint does not fit them for long.
	if err = errors.Join(err, c.Verbs.Forget(context.WithoutCancel(ctx), ct.ID)); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Checkpoint writes a checkpoint of containers of a pod, all as they are at one moment. They continue.
func (c *Calls) Checkpoint(ctx context.Context, req *v1.CheckpointPodRequest) error {
	if err := Able(ctx, c.Verbs, c.Why, "checkpoint sandbox "+req.GetPodSandboxId()); err != nil {
		return err
	}
	if err := c.checkpoint(ctx, req); err != nil {
		return fmt.Errorf("checkpoint sandbox %s: %w", req.GetPodSandboxId(), err)
	}
	return nil
}

func (c *Calls) checkpoint(ctx context.Context, req *v1.CheckpointPodRequest) error {
	tcp, err := podOptions(ctx, req.GetOptions(), core.TCPKeep)
	if err != nil {
		return err
	}
	sb, err := c.Sandbox(req.GetPodSandboxId())
	if err != nil {
		return err
	}
	if sb.State != core.SandboxReady {
		return fmt.Errorf("it is %s: %w", sb.State, errdefs.ErrFailedPrecondition)
	}
	out := stored{Version: podVersion}
	ids, err := c.members(sb, req.GetContainerIds(), &out)
	if err != nil {
		return err
	}
	dir, err := emptyDir(req.GetOutputPath())
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := c.Verbs.CheckpointTogether(ctx, ids, core.CheckpointOptions{TCP: tcp, FileLocks: true}); err != nil {
		return err
	}
	err = writePod(dir, out, func(i int, f *os.File) error { return c.Verbs.Export(ctx, ids[i], f) })
	for _, id := range ids { // their files change, and the checkpoints do not fit them for long
		err = errors.Join(err, c.Verbs.Forget(context.WithoutCancel(ctx), id))
	}
	return err
}

// members finds the containers of a request, and enters them in out.
func (c *Calls) members(sb *core.Sandbox, names []string, out *stored) (ids []core.ID, err error) {
	if len(names) == 0 {
		return nil, invalid.Errorf("container_ids is empty")
	}
	for i, name := range names {
		ct, err := c.Container(name)
		switch {
		case err != nil:
			return nil, err
		case ct.Sandbox != sb.ID:
			return nil, invalid.Errorf("container %s is of another sandbox", name)
		case slices.Contains(ids, ct.ID):
			return nil, invalid.Errorf("container %s is named twice", name)
		case ct.State != core.ContainerRunning && ct.State != core.ContainerAsleep:
			return nil, fmt.Errorf("container %s is %s: %w", name, ct.State, errdefs.ErrFailedPrecondition)
		}
		cfg, err := c.Config(ct.Data)
		if err != nil {
			return nil, err
		}
		ids = append(ids, ct.ID)
		out.Containers = append(out.Containers, member{Name: cfg.GetMetadata().GetName(), File: fmt.Sprintf("container-%d.tar", i)})
	}
	return ids, nil
}

// emptyDir opens an empty directory.
func emptyDir(path string) (*os.Root, error) {
	if !filepath.IsAbs(path) {
		return nil, invalid.Errorf("output_path %q is not absolute", path)
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, invalid.Errorf("output_path: %v", err)
	}
	list, err := fs.ReadDir(dir.FS(), ".")
	if err == nil && len(list) > 0 {
		err = fmt.Errorf("output_path %s is not empty: %w", path, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// writePod writes the files of a pod's checkpoint, and removes them after an error.
func writePod(dir *os.Root, pod stored, content func(i int, f *os.File) error) (err error) {
	var written []string
	defer func() {
		if err == nil {
			return
		}
		for _, name := range written {
			err = errors.Join(err, dir.Remove(name))
		}
	}()
	write := func(name string, fill func(f *os.File) error) error {
		f, err := dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		written = append(written, name)
		return errors.Join(fill(f), f.Sync(), f.Close())
	}
	for i, c := range pod.Containers {
		if err := write(c.File, func(f *os.File) error { return content(i, f) }); err != nil {
			return err
		}
	}
	b, err := json.MarshalIndent(pod, "", " ")
	if err != nil {
		return err
	}
	return write(podFile, func(f *os.File) error { _, err := f.Write(b); return err })
}

// Restore makes a pod with containers that continue the processes of a checkpoint when they are started.
func (c *Calls) Restore(ctx context.Context, req *v1.RestorePodRequest) (*v1.RestorePodResponse, error) {
	if err := Able(ctx, c.Verbs, c.Why, "restore sandbox "+req.GetConfig().GetMetadata().GetName()); err != nil {
		return nil, err
	}
	resp, err := c.restore(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("restore sandbox %s: %w", req.GetConfig().GetMetadata().GetName(), err)
	}
	return resp, nil
}

func (c *Calls) restore(ctx context.Context, req *v1.RestorePodRequest) (*v1.RestorePodResponse, error) {
	tcp, err := podOptions(ctx, req.GetOptions(), core.TCPRefuse)
	if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(req.GetCheckpointPath()) {
		return nil, invalid.Errorf("checkpoint_path %q is not absolute", req.GetCheckpointPath())
	}
	dir, err := os.OpenRoot(req.GetCheckpointPath())
	if err != nil {
		return nil, invalid.Errorf("checkpoint_path: %v", err)
	}
	defer func() { _ = dir.Close() }()
	files, err := read(dir, req.GetContainerConfigs())
	if err != nil {
		return nil, err
	}
	sb, err := c.Run(ctx, &v1.RunPodSandboxRequest{Config: req.GetConfig(), RuntimeHandler: req.GetRuntimeHandler()})
	if err != nil {
		return nil, err
	}
	resp := &v1.RestorePodResponse{PodSandboxId: string(sb.ID)}
	for i, cfg := range req.GetContainerConfigs() {
		ct, err := c.restoreMember(ctx, dir, files[i], &v1.CreateContainerRequest{PodSandboxId: string(sb.ID), SandboxConfig: req.GetConfig(), Config: cfg}, tcp)
		if err != nil {
			undo := c.Engine.RemoveSandbox(context.WithoutCancel(ctx), sb.ID, engine.RemoveOptions{Force: true, Request: c.Request})
			return nil, errors.Join(fmt.Errorf("container %s: %w", cfg.GetMetadata().GetName(), err), undo)
		}
		resp.RestoredContainers = append(resp.RestoredContainers, &v1.RestoredContainer{Name: cfg.GetMetadata().GetName(), ContainerId: string(ct.ID)})
	}
	return resp, nil
}

// read returns the file of each container.
func read(dir *os.Root, configs []*v1.ContainerConfig) (files []string, err error) {
	f, err := dir.Open(podFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, invalid.Errorf("checkpoint_path has no %s: it is no checkpoint of a pod by longshore", podFile)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxPodFile))
	if err != nil {
		return nil, err
	}
	var pod stored
	if err := json.Unmarshal(b, &pod); err != nil {
		return nil, invalid.Errorf("%s: %v", podFile, err)
	}
	if pod.Version != podVersion {
		return nil, invalid.Errorf("%s has the format %d of another longshore, this one knows %d", podFile, pod.Version, podVersion)
	}
	named := map[string]string{}
	for _, c := range pod.Containers {
		named[c.Name] = c.File
	}
	if len(configs) != len(named) || len(named) != len(pod.Containers) {
		return nil, invalid.Errorf("container_configs has %d containers, the checkpoint %d", len(configs), len(pod.Containers))
	}
	for _, cfg := range configs {
		name := cfg.GetMetadata().GetName()
		file, ok := named[name]
		if !ok {
			return nil, invalid.Errorf("container_configs: %q is not in the checkpoint, or twice here", name)
		}
		delete(named, name)
		files = append(files, file)
	}
	return files, nil
}

// restoreMember makes a container that continues the checkpoint of a file.
func (c *Calls) restoreMember(ctx context.Context, dir *os.Root, file string, req *v1.CreateContainerRequest, tcp core.TCPMode) (core.Container, error) {
	f, err := dir.Open(file)
	if err != nil {
		return core.Container{}, invalid.Errorf("%v", err)
	}
	defer func() { _ = f.Close() }()
	in, err := c.Verbs.Import(ctx, f)
	if err != nil {
		return core.Container{}, err
	}
	defer func() { _ = in.Close() }()
	if err := c.sameProcess(in.Meta(), req.GetConfig()); err != nil {
		return core.Container{}, err
	}
	ct, _, err := c.Create(ctx, req)
	if err == nil {
		err = c.Verbs.Prepare(ctx, ct.ID, in, core.RestoreOptions{TCP: tcp})
	}
	return ct, err
}

// sameProcess compares the process of a checkpoint with a config. Environments are compared by the names of the variables: a
// record has no values. The fields of other may differ.
func (c *Calls) sameProcess(m core.CheckpointMeta, is *v1.ContainerConfig, other ...string) error {
	if m.Owner != core.OwnerCRI {
		return invalid.Errorf("the checkpoint is of a container of %s", m.Owner)
	}
	was, err := c.Config(m.Data)
	if err != nil {
		return invalid.Errorf("the checkpoint's record: %v", err)
	}
	names := func(c *v1.ContainerConfig) (list []string) {
		for _, e := range c.GetEnvs() {
			list = append(list, e.GetKey())
		}
		slices.Sort(list)
		return list
	}
	wasUser, isUser := was.GetLinux().GetSecurityContext(), is.GetLinux().GetSecurityContext()
	for field, same := range map[string]bool{
		"metadata.name": was.GetMetadata().GetName() == is.GetMetadata().GetName(),
		"command":       slices.Equal(was.GetCommand(), is.GetCommand()),
		"args":          slices.Equal(was.GetArgs(), is.GetArgs()),
		"working_dir":   was.GetWorkingDir() == is.GetWorkingDir(),
		"envs":          slices.Equal(names(was), names(is)),
		"run_as_user":   wasUser.GetRunAsUser().GetValue() == isUser.GetRunAsUser().GetValue() && wasUser.GetRunAsUsername() == isUser.GetRunAsUsername(),
		"run_as_group":  wasUser.GetRunAsGroup().GetValue() == isUser.GetRunAsGroup().GetValue(),
	} {
		if !same && !slices.Contains(other, field) {
			return fmt.Errorf("the checkpoint does not fit: its process has another %s: %w", field, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}
