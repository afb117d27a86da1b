// Package translate turns a task of a Swarm into the engine's nouns.
//
// It is pure: it reads nothing of the node, and changes nothing. It refuses a task's setting that
// this node does not serve by its name, before anything is made. Start reading at Read.
package translate

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/enums"
	"github.com/longshore/longshore/internal/health"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// Node has the node's facts and resources for tasks.
type Node struct {
	ID, Hostname     string
	Architecture, OS string
	// Devices are the names of devices (vendor.com/class=name) by the kind of generic resource that
	// they are.
	Devices map[string][]string
	// Counts are how many the node has of a generic resource that is only a number, by its kind.
	Counts map[string]int64
	// Ingress selects the handling of ports of the whole swarm; "" is IngressMesh.
	Ingress string
}

// Task is a task with everything read.
type Task struct {
	Swarm *swarmv1.Task
	Node  Node

	spec    *swarmv1.ContainerSpec // with its templates expanded
	mounts  []*swarmv1.Mount       // of spec
	files   []File
	log     core.Sink // without a path; nothing when the task wants no logs
	service *core.LogDriver
	devices []string // that the managers have given to it, by their CDI names
}

// File is a secret or a config as the task sees it.
type File struct {
	Secret, Config string // the id of one of them
	Name           string // the object's, for messages
	Target         string // in the container
	UID, GID       int
	Mode           uint32

	named string // the target as the reference has it
}

// String is "secret NAME" or "config NAME".
func (f File) String() string {
	if f.Secret != "" {
		return "secret " + f.Name
	}
	return "config " + f.Name
}

// notServed refuses a setting that another node may serve.
func notServed(format string, args ...any) error {
	return fmt.Errorf("not served by this node: "+format+": %w", append(args, errdefs.ErrNotImplemented)...)
}

// Read reads a task. InvalidArgument or NotImplemented names the refused part.
func Read(t *swarmv1.Task, n Node) (Task, error) {
	a := Task{Swarm: t, Node: n}
	if id := t.GetId(); id == "" || len(id) > core.MaxKey || strings.ContainsRune(id, 0) {
		return a, invalid.Errorf("task id %q", id)
	}
	switch t.GetSpec().GetRuntime().(type) {
	case *swarmv1.TaskSpec_Container:
	case *swarmv1.TaskSpec_Attachment:
		return a, notServed("attaching running containers to a network")
	case *swarmv1.TaskSpec_Generic:
		return a, notServed("tasks of the kind %q", t.GetSpec().GetGeneric().GetKind())
	default:
		return a, invalid.Errorf("the task has no container")
	}
	var err error
	if a.spec, err = expandSpec(t, n); err != nil {
		return a, err
	}
	a.mounts = a.spec.GetMounts()
	if a.spec.GetImage() == "" {
		return a, invalid.Errorf("the task has no image")
	}
	for _, check := range []func() error{a.served, a.readFiles, a.checkMounts, a.readLog, a.readDevices} {
		if err := check(); err != nil {
			return a, err
		}
	}
	if _, err := a.Sandbox(); err != nil {
		return a, err
	}
	if _, err := health.Settle(a.health(), core.Image{}); err != nil {
		return a, err
	}
	if _, err = a.base(); err != nil {
		return a, err
	}
	return a, enums.Check(t.GetSpec())
}

// served refuses settings of the container that are not served.
func (a *Task) served() error {
	s := a.spec
	switch {
	case s.GetIsolation() != swarmv1.ContainerSpec_ISOLATION_DEFAULT && s.GetIsolation() != swarmv1.ContainerSpec_ISOLATION_PROCESS:
		return notServed("isolation %s", s.GetIsolation())
	case s.GetPrivileges().GetCredentialSpec() != nil:
		return notServed("credential specs, which are for Windows")
	case s.GetPrivileges().GetApparmor().GetMode() != swarmv1.Privileges_AppArmorOpts_DEFAULT && s.GetPrivileges().GetApparmor().GetMode() != swarmv1.Privileges_AppArmorOpts_DISABLED:
		return notServed("AppArmor mode %s", s.GetPrivileges().GetApparmor().GetMode())
	}
	return nil
}

// Image is the name of the task's image, and how it is pulled.
func (a Task) Image() (name string, o core.PullOptions, err error) {
	o, err = credentials(a.spec.GetPullOptions().GetRegistryAuth())
	return a.spec.GetImage(), o, err
}

// credentials reads a client's credentials for the registry: base64 of JSON.
func credentials(encoded string) (o core.PullOptions, err error) {
	if encoded == "" {
		return o, nil
	}
	var auth struct{ Username, Password, Auth, IdentityToken, RegistryToken string }
	body, err := base64.URLEncoding.DecodeString(encoded)
	if err != nil {
		body, err = base64.RawURLEncoding.DecodeString(encoded)
	}
	if err == nil {
		err = json.Unmarshal(body, &auth)
	}
	if err != nil {
		return o, invalid.Errorf("the registry's credentials cannot be read") // the error must not contain them
	}
	if auth.Username == "" && auth.Auth != "" {
		if pair, err := base64.StdEncoding.DecodeString(auth.Auth); err == nil {
			auth.Username, auth.Password, _ = strings.Cut(string(pair), ":")
		}
	}
	return core.PullOptions{Username: auth.Username, Password: auth.Password, Token: auth.IdentityToken, Bearer: auth.RegistryToken}, nil
}

// Files are the secrets and configs of the task, in the order of their mounts.
func (a Task) Files() []File { return a.files }

func (a Task) secretTargets() (at []string) {
	for _, f := range a.files {
		if f.Secret != "" {
			at = append(at, f.Target)
		}
	}
	return at
}

// secretsDir is the directory of secrets.
const secretsDir = "/run/secrets"

func (a *Task) readFiles() error {
	for _, r := range a.spec.GetSecrets() {
		if r.GetFile() == nil {
			return invalid.Errorf("secret %s has no file", r.GetSecretName())
		}
		f, err := file(r.GetFile(), secretsDir)
		if err != nil {
			return fmt.Errorf("secret %s: %w", r.GetSecretName(), err)
		}
		f.Secret, f.Name = r.GetSecretId(), r.GetSecretName()
		a.files = append(a.files, f)
	}
	for _, r := range a.spec.GetConfigs() {
		if r.GetFile() == nil {
			return notServed("config %s for the engine itself", r.GetConfigName())
		}
		f, err := file(r.GetFile(), "/")
		if err != nil {
			return fmt.Errorf("config %s: %w", r.GetConfigName(), err)
		}
		f.Config, f.Name = r.GetConfigId(), r.GetConfigName()
		a.files = append(a.files, f)
	}
	seen := map[string]bool{}
	for _, f := range a.files {
		if seen[f.Target] {
			return invalid.Errorf("two secrets or configs at %s", f.Target)
		}
		seen[f.Target] = true
	}
	return nil
}

func file(t *swarmv1.FileTarget, dir string) (File, error) {
	f := File{Mode: t.GetMode(), Target: t.GetName(), named: t.GetName()}
	if f.Mode > 0o7777 {
		return f, invalid.Errorf("mode %o", f.Mode)
	}
	if f.Target == "" || strings.ContainsRune(f.Target, 0) || slices.Contains(strings.Split(f.Target, "/"), "..") {
		return f, invalid.Errorf("file name %q", f.Target)
	}
	if !path.IsAbs(f.Target) {
		f.Target = path.Join(dir, f.Target)
	}
	if f.Target = path.Clean(f.Target); f.Target == "/" || f.Target == dir {
		return f, invalid.Errorf("file name %q", t.GetName())
	}
	var err error
	if f.UID, err = owner(t.GetUid()); err == nil {
		f.GID, err = owner(t.GetGid())
	}
	return f, err
}

// owner reads a user or a group of a file. "" is root.
func owner(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, invalid.Errorf("owner %q of the file is not a number", text)
	}
	return int(n), nil
}

// Name is the task's, as docker names its container.
func (a Task) Name() string {
	if n := a.Swarm.GetAnnotations().GetName(); n != "" {
		return n
	}
	slot := strconv.FormatUint(a.Swarm.GetSlot(), 10)
	if a.Swarm.GetSlot() == 0 {
		slot = a.Swarm.GetNodeId()
	}
	return a.Swarm.GetServiceAnnotations().GetName() + "." + slot + "." + a.Swarm.GetId()
}

// labelPrefix begins the labels that identify a container's task; they are docker's, so that tools
// find a service's containers.
const labelPrefix = "com.docker.swarm."

// Labels are the container's own, and those that identify it.
func (a Task) Labels() map[string]string {
	l := maps.Clone(a.spec.GetLabels())
	if l == nil {
		l = map[string]string{}
	}
	for k, v := range map[string]string{
		"task": "", "task.name": a.Name(), "task.id": a.Swarm.GetId(), "node.id": a.Node.ID,
		"service.id": a.Swarm.GetServiceId(), "service.name": a.Swarm.GetServiceAnnotations().GetName(),
	} {
		l[labelPrefix+k] = v
	}
	return l
}

// defaultGrace is how long a program has to end when the task does not say.
const defaultGrace = 10 * time.Second

// Place says where things of the node are that a container is made with.
type Place struct {
	Log   string   // the file of its output
	Files []string // those of Task.Files, in their order
	// Volumes are the directories of the task's cluster volumes, by their ids.
	Volumes map[string]string
}

// Container is the task as the engine's container.
func (a Task) Container(img core.Image, p Place) (core.ContainerConfig, error) {
	c := core.ContainerConfig{
		Key: core.Key(a.Swarm.GetId()), Labels: a.Labels(), Root: core.Root{Image: img.ID, ReadOnly: a.spec.GetReadOnly()},
		Init: a.spec.GetInit().GetValue(), Stop: core.Stop{Signal: a.spec.GetStopSignal(), Grace: defaultGrace},
		IO: core.IO{TTY: a.spec.GetTty()}, Shown: core.Shown{Name: a.Name(), Image: a.spec.GetImage()}, Labelled: true,
	}
	if g := a.spec.GetStopGracePeriod(); g != nil {
		c.Stop.Grace = g.AsDuration()
	}
	if a.spec.GetOpenStdin() {
		c.IO.Stdin = core.StdinOpen
	}
	if a.log.Format != "" {
		sink := a.log
		sink.Path = p.Log
		c.IO.Sinks = []core.Sink{sink}
		c.LogDriver = a.service
	}
	c.CDI = a.devices
	check, err := health.Settle(a.health(), img)
	if err != nil {
		return c, err
	}
	if c.Data, err = json.Marshal(data{check}); err != nil {
		return c, fmt.Errorf("keep the health check: %w", err)
	}
	c.Volumes = a.volumes()
	s, err := a.base()
	if err != nil {
		return c, err
	}
	for i, f := range a.files {
		m, err := ocispec.Bind{Source: p.Files[i], Target: f.Target, ReadOnly: true}.Mount()
		if err != nil {
			return c, err
		}
		ocispec.AddMounts(s, []specs.Mount{m})
	}
	clusters, err := a.clusterMounts(p.Volumes)
	if err != nil {
		return c, err
	}
	ocispec.AddMounts(s, clusters)
	ocispec.SetLevels(s, a.spec.GetLabels()[core.LandlockAnnotation])
	c.Spec, c.Users = a.finish(s), ocispec.UserNeeds(s)
	doc, asked := a.spec.GetLabels()[core.GrantAnnotation]
	ocispec.Granted{
		Document: doc, Asked: asked, Image: &img, Secrets: a.secretTargets(),
		Identity: core.Identity{Pod: a.Swarm.GetId(), Container: a.Swarm.GetServiceAnnotations().GetName(), Image: a.spec.GetImage()},
	}.Apply(&c)
	return c, nil
}

// finish adds the values that depend on the root and the image.
func (a Task) finish(s *specs.Spec) core.SpecFunc {
	return func(_ context.Context, r core.Rootfs) (*specs.Spec, []byte, error) {
		h := ocispec.Head{
			User: a.user, WorkDir: a.spec.GetDir(), Hostname: r.Sandbox.Config.Hostname, Env: [][]string{a.env()},
			Args: func(img *imagespec.ImageConfig) ([]string, error) {
				return ocispec.Command(img, a.spec.GetCommand(), a.spec.GetArgs())
			},
		}
		_, err := h.Finish(s, r)
		return s, nil, err
	}
}
