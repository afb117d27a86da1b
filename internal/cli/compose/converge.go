package compose

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/composefile"
)

// converge creates the containers of a service, replaces those that have changed, and removes those that are too many.
func (u *upper) converge(ctx context.Context, s composefile.Service) error {
	for _, dir := range s.MakeDirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	list, err := u.containersOf(ctx, s.Name)
	if err != nil {
		return err
	}
	have := map[int]*longshorev1.Container{}
	for _, c := range list {
		n := numberOf(c)
		was := have[n]
		switch {
		case n < 1 || n > s.Scale:
			err = u.remove(ctx, c, false)
		case was == nil:
			have[n] = c
		case c.GetName() == nameOf(u.name, s, n): // a replacement that was interrupted has left the other one
			have[n], err = c, u.remove(ctx, was, false)
		default:
			err = u.remove(ctx, c, false)
		}
		if err != nil {
			return err
		}
	}
	for n := 1; n <= s.Scale; n++ {
		c := have[n]
		ended, stale, err := u.joins(ctx, c, u.request(s, n))
		stale = stale && !u.f.keep
		if err == nil && (c == nil || stale || u.changed(c, s, n)) {
			err = u.startEnded(ctx, ended)
		}
		if err != nil {
			return u.named("service "+s.Name, err)
		}
		switch {
		case c == nil:
			name := nameOf(u.name, s, n)
			u.step("Container", name, "Creating")
			if err := u.create(ctx, s, u.request(s, n)); err != nil {
				return err
			}
			u.step("Container", name, "Created")
		case stale || u.changed(c, s, n):
			if err := u.replace(ctx, c, s, n); err != nil {
				return err
			}
		case active(c):
			u.step("Container", c.GetName(), "Running")
		}
	}
	return nil
}

// changed reports whether a container must be replaced.
func (u *upper) changed(c *longshorev1.Container, s composefile.Service, number int) bool {
	if u.f.keep {
		return false
	}
	if u.f.force && (len(u.only) == 0 || slices.Contains(u.only, s.Name)) {
		return true
	}
	labels := c.GetLabels()
	return labels[composefile.LabelHash] != s.Hash || labels[composefile.LabelImage] != u.images[s.Name] || c.GetName() != nameOf(u.name, s, number)
}

// create creates a container with its files. After an error nothing of it is left.
func (u *upper) create(ctx context.Context, s composefile.Service, req *longshorev1.CreateRequest) error {
	u.recreated[s.Name] = true
	stream, err := u.c.Containers.Create(ctx, req)
	if err != nil {
		return err
	}
	var created *longshorev1.Created
	err = base.Receive(stream.Recv, func(m *longshorev1.CreateResponse) error {
		if m.GetCreated() != nil {
			created = m.GetCreated()
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, w := range created.GetWarnings() {
		u.warn("warning: %s: %s", req.GetName(), w)
	}
	if len(s.Files) == 0 {
		return nil
	}
	if err := u.copyFiles(ctx, created.GetId(), s.Files); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), stateTime)
		defer cancel()
		_, rerr := u.c.Containers.Remove(clean, &longshorev1.RemoveRequest{Name: created.GetId(), Force: true, Volumes: true})
		return errors.Join(u.named("copy secrets and configs", err), rerr)
	}
	return nil
}

// copyFiles writes secrets and configs into a new container.
func (u *upper) copyFiles(ctx context.Context, id string, files []composefile.File) error {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	dirs := map[string]bool{"/": true}
	for _, f := range files {
		var missing []string
		for dir := path.Dir(f.Path); !dirs[dir]; dir = path.Dir(dir) {
			missing, dirs[dir] = append(missing, dir), true
		}
		for _, dir := range slices.Backward(missing) {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: 0o755, ModTime: time.Now()}); err != nil {
				return err
			}
		}
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: strings.TrimPrefix(f.Path, "/"), Mode: f.Mode, Uid: f.UID, Gid: f.GID, Size: int64(len(f.Content)), ModTime: time.Now(),
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(f.Content); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	stream, err := u.c.Containers.CopyIn(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&longshorev1.CopyInRequest{To: &longshorev1.CopyTo{Name: id, Path: "/", Owners: true}}); err == nil {
		for chunk := range slices.Chunk(b.Bytes(), base.ArchiveChunk) {
			if stream.Send(&longshorev1.CopyInRequest{Data: chunk}) != nil {
				break // the answer has the reason
			}
		}
	}
	_, err = stream.CloseAndRecv()
	return err
}

// replace puts a new container in the place of one, with its anonymous volumes. The old one has another name meanwhile. It is
// removed once the new one exists, and gets its name back if that fails.
func (u *upper) replace(ctx context.Context, c *longshorev1.Container, s composefile.Service, number int) error {
	req := u.request(s, number)
	if !u.f.renew {
		kept, err := u.kept(ctx, c, req, u.images[s.Name])
		if err != nil {
			return err
		}
		req.Mounts = kept
	}
	anonymous, err := u.anonymous(ctx, []*longshorev1.Container{c})
	if err != nil {
		return err
	}
	name, aside := c.GetName(), base.Short(c.GetId())+"_"+nameOf(u.name, s, number)
	aside = aside[:min(len(aside), maxName)]
	u.step("Container", name, "Recreating")
	if err := u.stop(ctx, c); err != nil {
		return err
	}
	if name != aside {
		if _, err := u.c.Containers.Rename(ctx, &longshorev1.RenameRequest{Name: c.GetId(), NewName: aside}); err != nil {
			return err
		}
	}
	if err := u.create(ctx, s, req); err != nil {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), stateTime)
		defer cancel()
		_, rerr := u.c.Containers.Rename(back, &longshorev1.RenameRequest{Name: c.GetId(), NewName: name})
		return errors.Join(err, rerr)
	}
	if _, err := u.c.Containers.Remove(ctx, &longshorev1.RemoveRequest{Name: c.GetId(), Force: true, Volumes: u.f.renew}); err != nil {
		return err
	}
	if u.f.renew {
		if _, err := u.removeVolumes(ctx, anonymous, false); err != nil {
			return err
		}
	}
	u.step("Container", nameOf(u.name, s, number), "Recreated")
	return nil
}

// maxName is the length of the longest name of a container.
const maxName = 128

// kept returns the mounts of a request, with the anonymous volumes that the old container has where the request or its image has
// one, too.
func (u *upper) kept(ctx context.Context, old *longshorev1.Container, req *longshorev1.CreateRequest, image string) ([]*longshorev1.Mount, error) {
	anonymous, err := u.anonymous(ctx, []*longshorev1.Container{old})
	if err != nil || len(anonymous) == 0 {
		return req.GetMounts(), err
	}
	resp, err := u.c.Containers.Inspect(ctx, &longshorev1.InspectRequest{Name: old.GetId()})
	if err != nil {
		return nil, err
	}
	var record struct {
		Config struct {
			Volumes []struct{ Name, Target string }
		}
	}
	if err := json.Unmarshal(resp.GetJson(), &record); err != nil {
		return nil, fmt.Errorf("read the record of %s: %w", old.GetName(), err)
	}
	declared, err := u.declared(ctx, image)
	if err != nil {
		return nil, err
	}
	mounts := req.GetMounts()
	for _, v := range record.Config.Volumes {
		if !slices.Contains(anonymous, v.Name) {
			continue
		}
		i := slices.IndexFunc(mounts, func(m *longshorev1.Mount) bool { return path.Clean(m.GetTarget()) == v.Target })
		tmpfs := slices.ContainsFunc(req.GetTmpfs(), func(t *longshorev1.Tmpfs) bool { return path.Clean(t.GetTarget()) == v.Target })
		switch {
		case i >= 0 && mounts[i].GetAnonymous():
			mounts[i].Source, mounts[i].Anonymous = v.Name, false
		case i < 0 && !tmpfs && declared[v.Target]:
			mounts = append(mounts, &longshorev1.Mount{Source: v.Name, Target: v.Target})
		}
	}
	return mounts, nil
}

// declared returns the targets of the volumes that an image declares.
func (u *upper) declared(ctx context.Context, image string) (map[string]bool, error) {
	resp, err := u.c.Images.InspectImage(ctx, &longshorev1.InspectImageRequest{Name: image})
	if err != nil {
		return nil, err
	}
	var record struct {
		Config struct {
			Config struct{ Volumes map[string]struct{} }
		}
	}
	if err := json.Unmarshal(resp.GetJson(), &record); err != nil {
		return nil, fmt.Errorf("read the record of the image %s: %w", base.Short(image), err)
	}
	targets := map[string]bool{}
	for target := range record.Config.Config.Volumes {
		targets[path.Clean(target)] = true
	}
	return targets, nil
}

// recordID returns the ID of an object's record.
func recordID(data []byte) (string, error) {
	var record struct{ ID string }
	if err := json.Unmarshal(data, &record); err != nil {
		return "", fmt.Errorf("read the agent's record: %w", err)
	}
	return record.ID, nil
}

// start starts the containers of a service when its dependencies are as it wants them.
func (u *upper) start(ctx context.Context, s composefile.Service, failed map[string]error, started func(*longshorev1.Container, composefile.Service)) error {
	again := false
	for _, d := range s.DependsOn {
		err := failed[d.Service]
		if err != nil {
			err = errors.New("it did not start")
		} else {
			err = u.dependency(ctx, d)
		}
		switch {
		case err != nil && d.Required:
			return u.named("needs the service "+d.Service, err)
		case err != nil:
			u.warn("service %s: starts without the service %s: %s", s.Name, d.Service, u.a.Explain(err))
		}
		again = again || d.Restart && u.recreated[d.Service]
	}
	list, err := u.containersOf(ctx, s.Name)
	if err != nil {
		return err
	}
	for _, c := range list {
		switch {
		case !active(c):
			u.step("Container", c.GetName(), "Starting")
			if _, err := u.c.Containers.Start(ctx, &longshorev1.StartRequest{Name: c.GetId()}); err != nil {
				return err
			}
			u.step("Container", c.GetName(), "Started")
		case again:
			u.step("Container", c.GetName(), "Restarting")
			if _, err := u.c.Containers.Restart(ctx, &longshorev1.RestartRequest{Name: c.GetId()}); err != nil {
				return err
			}
			u.step("Container", c.GetName(), "Started")
		}
		if started != nil {
			started(c, s)
		}
	}
	return nil
}

// dependency waits until a service is as another one wants it.
func (u *upper) dependency(ctx context.Context, d composefile.Dependency) error {
	if d.Condition == composefile.Started || d.Condition == "" {
		return nil
	}
	list, err := u.containersOf(ctx, d.Service)
	if err != nil {
		return err
	}
	for _, c := range list {
		u.step("Container", c.GetName(), "Waiting")
		if err := u.until(ctx, d.Service, c.GetId(), d.Condition); err != nil {
			u.step("Container", c.GetName(), "Error")
			return err
		}
		u.step("Container", c.GetName(), map[string]string{composefile.Healthy: "Healthy", composefile.Completed: "Exited"}[d.Condition])
	}
	return nil
}

// until waits until a container fulfils a condition, and fails when it no longer can.
func (u *upper) until(ctx context.Context, service, id, condition string) error {
	return u.watch(ctx, func() (bool, error) {
		list, err := u.containersOf(ctx, service)
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(list, func(c *longshorev1.Container) bool { return c.GetId() == id })
		if i < 0 {
			return false, errors.New("its container was removed")
		}
		return fulfils(list[i], condition)
	})
}

// fulfils reports whether a container fulfils a condition. The error says why it never will.
func fulfils(c *longshorev1.Container, condition string) (bool, error) {
	status := c.GetAutopsy().GetStatus()
	switch {
	case c.GetState() == "exited" && condition == composefile.Completed:
		if status != 0 {
			return false, fmt.Errorf("container %s has ended with the exit status %d", c.GetName(), status)
		}
		return true, nil
	case c.GetState() == "exited":
		return false, fmt.Errorf("container %s has ended with the exit status %d", c.GetName(), status)
	case condition == composefile.Completed:
		return false, nil
	case c.GetHealth() == "unhealthy":
		return false, fmt.Errorf("container %s is unhealthy", c.GetName())
	case running(c) && c.GetHealth() == "" && condition == composefile.Healthy:
		return false, fmt.Errorf("container %s has no health check", c.GetName())
	}
	return running(c) && (c.GetHealth() == "" || c.GetHealth() == "healthy"), nil
}

// waitForAll waits until each service runs or is healthy. One that another needs to complete has ended.
func (u *upper) waitForAll(ctx context.Context) error {
	if u.f.waitTimeout > 0 {
		// The agent would see a deadline, and could end the stream with an error of its own.
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		late := fmt.Errorf("--wait-timeout: not all services run or are healthy after %d s", u.f.waitTimeout)
		defer time.AfterFunc(time.Duration(u.f.waitTimeout)*time.Second, func() { cancel(late) }).Stop()
	}
	ends := map[string]bool{}
	for _, s := range u.p.Services {
		for _, d := range s.DependsOn {
			ends[d.Service] = ends[d.Service] || d.Condition == composefile.Completed
		}
	}
	var errs []error
	for _, s := range u.p.Services {
		condition := runs
		if ends[s.Name] {
			condition = composefile.Completed
		}
		list, err := u.containersOf(ctx, s.Name)
		for _, c := range list {
			if err = u.until(ctx, s.Name, c.GetId(), condition); err != nil {
				break
			}
			u.step("Container", c.GetName(), map[string]string{runs: "Healthy", composefile.Completed: "Exited"}[condition])
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			errs = append(errs, u.named("service "+s.Name, err))
		}
	}
	return u.state(ctx, errs...)
}

// runs is the condition of --wait: a container runs, and is healthy if it has a health check.
const runs = "running_or_healthy"
