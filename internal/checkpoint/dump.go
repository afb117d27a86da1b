package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/checkpoint/archive"
	"github.com/longshore/longshore/internal/checkpoint/criurun"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
)

// dump is the state of one Dump.
type dump struct {
	c    *Checkpointer
	req  core.DumpRequest
	spec *specs.Spec
	d    description
	dir  string
	args []string
}

// Dump implements core.Checkpointer.
func (c *Checkpointer) Dump(ctx context.Context, req core.DumpRequest) (core.Dumped, error) {
	id := req.Container.ID
	done, err := c.dump(ctx, req)
	if err == nil {
		return done, nil
	}
	clean := context.WithoutCancel(ctx)
	// CRIU may still work, if the keeper has died.
	return core.Dumped{}, errors.Join(err, c.settle(clean, id, func() error { return nil }), c.Remove(clean, id))
}

func (c *Checkpointer) dump(ctx context.Context, req core.DumpRequest) (out core.Dumped, err error) {
	program, err := c.probe.path(ctx)
	if err != nil {
		return out, err
	}
	ct := &req.Container
	if err := c.Remove(ctx, ct.ID); err != nil {
		return out, err
	}
	dm := &dump{c: c, req: req, dir: c.dir(ct.ID)}
	if dm.spec, err = ocispec.BundleSpec(ct.Bundle); err != nil {
		return out, err
	}
	if err := c.storable(ct, dm.spec); err != nil {
		return out, err
	}
	if err := os.MkdirAll(filepath.Join(dm.dir, archive.Images), 0o700); err != nil {
		return out, err
	}
	if s, err := c.o.Cgroups.Stats(ctx, ct.Cgroup, core.StatsUsage); err == nil {
		if err := c.room(s.Memory.Usage.N); err != nil {
			return out, err
		}
	}
	for _, do := range []func(context.Context) error{dm.mounts, dm.files, dm.namespaces, dm.connections, dm.root, dm.describe} {
		if err := do(ctx); err != nil {
			return out, err
		}
	}
	if out.Frozen, err = dm.run(ctx, program); err != nil {
		return out, err
	}
	if err := c.finish(ct.ID); err != nil {
		return out, err
	}
	out.Bytes, err = size(dm.dir)
	return out, err
}

// storable refuses containers that could not be restored.
func (c *Checkpointer) storable(ct *core.Container, spec *specs.Spec) error {
	if c.o.Restorable != nil && !c.o.Restorable(ct.Runtime) {
		return fmt.Errorf("its runtime %s cannot restore it, native can: %w", ct.Runtime, errdefs.ErrNotImplemented)
	}
	for _, ns := range spec.Linux.Namespaces {
		if ns.Type == specs.UserNamespace {
			return fmt.Errorf("it is in a user namespace, which a checkpoint cannot store yet: %w", errdefs.ErrNotImplemented)
		}
	}
	return nil
}

// mounts finds the mounts that CRIU does not store: those of files outside of the container's mount namespace.
func (m *dump) mounts(context.Context) error {
	list, err := readMounts(m.req.Container.Main.Pid)
	if err != nil {
		return err
	}
	for _, mt := range list {
		if mt.own() {
			continue
		}
		if strings.ContainsAny(mt.target, "[]:,\n") {
			return fmt.Errorf("its mount %q has a name that CRIU cannot process: %w", mt.target, errdefs.ErrNotImplemented)
		}
		name := mountName(len(m.d.Mounts))
		m.d.Mounts = append(m.d.Mounts, mount{Name: name, Target: mt.target})
		m.args = append(m.args, "--external", "mnt["+mt.target+"]:"+name)
	}
	return nil
}

// files finds the open files that belong to mounts of the host: the standard streams.
func (m *dump) files(ctx context.Context) error {
	pids, err := m.c.o.Cgroups.Pids(ctx, m.req.Container.Cgroup)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, pid := range pids {
		list, err := outsideFiles(pid, m.req.Container.ID)
		if err != nil {
			return err
		}
		for _, f := range list {
			if !seen[f.Name] {
				seen[f.Name] = true
				m.d.Files = append(m.d.Files, f)
				m.args = append(m.args, "--external", f.Name)
			}
		}
	}
	return nil
}

// namespaces finds the namespaces that belong to the sandbox.
func (m *dump) namespaces(context.Context) error {
	for _, ns := range m.spec.Linux.Namespaces {
		if ns.Path == "" {
			continue
		}
		name, kind := "", ""
		switch ns.Type {
		case specs.NetworkNamespace:
			name, kind = netName, "net"
			m.d.Net = name
		case specs.PIDNamespace:
			name, kind = pidName, "pid"
			m.d.Pid = name
		case specs.IPCNamespace:
			m.d.IPC = true
		case specs.UTSNamespace:
			m.d.UTS = true
		}
		if name == "" {
			continue
		}
		inode, err := namespaceOf(m.req.Container.Main.Pid, kind)
		if err != nil {
			return err
		}
		m.args = append(m.args, "--external", kind+"["+inode+"]:"+name)
	}
	return nil
}

// namespaceOf returns the inode of a namespace of a process.
func namespaceOf(pid int, kind string) (string, error) {
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	if err != nil {
		return "", err
	}
	_, inode, ok := strings.Cut(strings.TrimSuffix(link, "]"), ":[")
	if !ok {
		return "", fmt.Errorf("namespace %q of process %d: %w", link, pid, errdefs.ErrInternal)
	}
	return inode, nil
}

// connections finds the addresses of the container's TCP connections.
func (m *dump) connections(ctx context.Context) error {
	pids, err := m.c.o.Cgroups.Pids(ctx, m.req.Container.Cgroup)
	if err == nil {
		m.d.Addresses, err = connected(pids)
	}
	return err
}

// root stores the changes of the root file system.
func (m *dump) root(ctx context.Context) error {
	ct := &m.req.Container
	if ct.Image == "" || ct.Config.Root.ReadOnly {
		return nil
	}
	use := rootUse(&m.req.Sandbox, m.spec)
	deleted := []string{}
	err := m.c.o.Layers.Changes(ctx, ct.ID, use, func(f core.FileChange) error {
		if f.Kind == "D" {
			deleted = append(deleted, f.Path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := m.json(archive.Deleted, deleted); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(m.dir, archive.Root), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(m.c.o.Layers.Pack(ctx, ct.ID, use, w)) }()
	err = archive.WithoutMarkers(r, &roomy{w: f, room: m.c.room})
	_ = r.CloseWithError(errors.New("the layer is not read any more"))
	return errors.Join(err, f.Close())
}

// roomy checks the free space while it writes.
type roomy struct {
	w    io.Writer
	room func(uint64) error
	left int
}

func (r *roomy) Write(p []byte) (int, error) {
	if r.left -= len(p); r.left < 0 {
		r.left = 16 << 20
		if err := r.room(16 << 20); err != nil {
			return 0, err
		}
	}
	return r.w.Write(p)
}

// rootUse returns the paths of a root that are not the container's own.
func rootUse(sb *core.Sandbox, spec *specs.Spec) core.RootUse {
	use := core.RootUse{Mounts: []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}}
	for _, m := range spec.Mounts {
		use.Mounts = append(use.Mounts, m.Destination)
	}
	for _, m := range sb.Config.UIDs {
		use.UIDs = append(use.UIDs, core.IDRange{Container: m.ContainerID, Host: m.HostID, Size: m.Size})
	}
	for _, m := range sb.Config.GIDs {
		use.GIDs = append(use.GIDs, core.IDRange{Container: m.ContainerID, Host: m.HostID, Size: m.Size})
	}
	return use
}

// shown is the content of archive.Config, in the form of Podman and CRI-O.
type shown struct {
	ID              string    `json:"id"`
	Name            string    `json:"name"`
	RootfsImage     string    `json:"rootfsImage,omitempty"`
	RootfsImageRef  string    `json:"rootfsImageRef,omitempty"`
	RootfsImageName string    `json:"rootfsImageName,omitempty"`
	OCIRuntime      string    `json:"runtime,omitempty"`
	CreatedTime     time.Time `json:"createdTime"`
	CheckpointedAt  time.Time `json:"checkpointedTime"`
	RestoredAt      time.Time `json:"restoredTime"`
	Restored        bool      `json:"restored"`
}

// describe writes the files about the container.
func (m *dump) describe(ctx context.Context) error {
	ct, sb := &m.req.Container, &m.req.Sandbox
	image := ct.Config.Shown.Image
	if image == "" && m.c.o.ImageName != nil {
		image = m.c.o.ImageName(ctx, ct)
	}
	now := time.Now().Round(0).UTC()
	m.d.Version, m.d.Runtime, m.d.Command, m.d.FileLocks = version, ct.Runtime, ct.Main.Args, m.req.FileLocks
	m.d.CheckpointMeta = core.CheckpointMeta{
		Container: string(ct.ID), Owner: ct.Owner, Name: ct.Name(), Image: string(ct.Image), ImageName: image, At: now, TCP: m.req.TCP, Data: ct.Data,
	}
	status := map[string]any{}
	var subnets []map[string]string
	for _, a := range sb.Network.Addrs {
		subnets = append(subnets, map[string]string{"ipnet": a.String() + "/" + strconv.Itoa(a.BitLen())})
	}
	if len(subnets) > 0 {
		status["longshore"] = map[string]any{"interfaces": map[string]any{"eth0": map[string]any{"subnets": subnets}}}
	}
	cfg := shown{
		ID: string(ct.ID), Name: ct.Name(), RootfsImage: image, RootfsImageRef: string(ct.Image), RootfsImageName: image,
		OCIRuntime: ct.Runtime, CreatedTime: ct.Created, CheckpointedAt: now,
	}
	if cp := ct.LastCheckpoint(); cp != nil && !cp.Restored.IsZero() {
		cfg.Restored, cfg.RestoredAt = true, cp.Restored
	}
	spec := *m.spec
	spec.Annotations = map[string]string{}
	for k, v := range m.spec.Annotations {
		spec.Annotations[k] = v
	}
	annotate(&spec, ct, sb, image)
	return errors.Join(m.json(archive.Meta, m.d), m.json(archive.Config, cfg), m.json(archive.Spec, spec), m.json(archive.Network, status))
}

// annotate adds CRI-O's annotations. checkpointctl reads names and addresses from them.
func annotate(spec *specs.Spec, ct *core.Container, sb *core.Sandbox, image string) {
	ip := ""
	if len(sb.Network.Addrs) > 0 {
		ip = sb.Network.Addrs[0].String()
	}
	meta, _ := json.Marshal(map[string]string{"name": ct.Name()}) //nolint:errchkjson // strings have a JSON
	for k, v := range map[string]string{
		"io.container.manager": "cri-o", "io.kubernetes.cri-o.Metadata": string(meta), "io.kubernetes.cri-o.Created": ct.Created.Format(time.RFC3339Nano), "io.kubernetes.cri-o.Name": ct.Name(), "io.kubernetes.cri-o.ContainerID": string(ct.ID), "io.kubernetes.cri-o.SandboxID": string(sb.ID),
		"io.kubernetes.cri-o.ImageName": image, "io.kubernetes.cri-o.IP.0": ip,
	} {
		if _, ok := spec.Annotations[k]; !ok && v != "" {
			spec.Annotations[k] = v
		}
	}
}

func (m *dump) json(name string, v any) error {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	return atomicfile.Replace(filepath.Join(m.dir, name), b, 0o600)
}

// freezer returns the directory of the freezer of a cgroup.
func (c *Checkpointer) freezer(ref core.CgroupRef) string {
	_, unified, own := c.o.Cgroups.Dirs(ref)
	if c.o.Cgroups.Mode() == core.CgroupV2 {
		return unified
	}
	return own["freezer"]
}

// run runs CRIU.
func (m *dump) run(ctx context.Context, program string) (time.Duration, error) {
	ct := &m.req.Container
	work, err := m.c.newWork(ct.ID)
	if err != nil {
		return 0, err
	}
	images := filepath.Join(m.dir, archive.Images)
	args := append([]string{
		program, "dump", "--no-default-config", "--tree", strconv.Itoa(ct.Main.Pid), "--images-dir", images, "--work-dir", m.dir, "--log-file", archive.Log, "-v2",
		"--manage-cgroups=ignore", "--freeze-cgroup", m.c.freezer(ct.Cgroup), "--network-lock", "nftables", "--ghost-limit", "64M", "--link-remap",
	}, m.args...)
	switch m.req.TCP {
	case core.TCPKeep:
		args = append(args, "--tcp-established")
	case core.TCPClose:
		args = append(args, "--tcp-close")
	}
	if m.req.FileLocks {
		args = append(args, "--file-locks")
	}
	// CRIU itself kills processes with connections that are to continue: otherwise their kernel would close these.
	if !m.req.End || m.req.TCP != core.TCPKeep {
		args = append(args, "--leave-running")
	}
	cmd, err := m.c.command(work, criurun.Job{Args: args, Dir: m.dir})
	if err != nil {
		return 0, err
	}
	limit := m.req.Timeout
	if limit <= 0 {
		limit = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begun := time.Now()
	res, err := m.c.o.Launcher.Run(ctx, cmd)
	if err == nil && res.Status != 0 {
		err = &core.CommandError{Status: res.Status, Stderr: res.Stderr}
	}
	if err != nil {
		return 0, failure("store its processes", filepath.Join(m.dir, archive.Log), err)
	}
	return time.Since(begun), nil
}

// finish marks a checkpoint as complete.
func (c *Checkpointer) finish(id core.ID) error {
	if err := os.RemoveAll(c.work(id)); err != nil {
		return err
	}
	dir := c.dir(id)
	if err := os.Rename(filepath.Join(dir, archive.Images, archive.Stats), filepath.Join(dir, archive.Stats)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return atomicfile.Replace(filepath.Join(dir, whole), nil, 0o600)
}

func size(dir string) (total uint64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			total += uint64(info.Size())
		}
		return err
	})
	return total, err
}
