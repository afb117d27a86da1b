package nomad

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	nomadstructs "github.com/longshore/longshore/api/nomad/structs"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/sysctl/sysctltest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestHowTasksEnd: by themselves, by signals, for want of memory, and asked to.
func TestHowTasksEnd(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		for _, c := range []struct {
			script string
			want   *nomaddriver.ExitResult
		}{
			{"exit 0", &nomaddriver.ExitResult{}},
			{"exit 43", &nomaddriver.ExitResult{ExitCode: 43}},
			{"(sleep 1000 &); (sleep 1000 &) ; exit 3", &nomaddriver.ExitResult{ExitCode: 3}}, // its children go with it
			{"tail /dev/zero; exit 5", &nomaddriver.ExitResult{ExitCode: 5, OomKilled: true}},
			{"exec tail /dev/zero", &nomaddriver.ExitResult{ExitCode: 137, Signal: 9, OomKilled: true}},
		} {
			task := r.given("ends", c.script, nil)
			task.Resources.AllocatedResources.Memory.MemoryMb = 32
			if _, got := r.said(task); got.String() != c.want.String() {
				t.Errorf("%q ended with %v, want %v", c.script, got, c.want)
			}
		}
		r.stopped()
		if left := nodetest.Processes("sleep", "1000"); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		r.nothingLeft()
	})
}

// stopped are the ways to stop a task.
func (r *rig) stopped() {
	r.t.Helper()
	for i, c := range []struct {
		script, signal string
		config         map[string]any
		grace          time.Duration
		code, by       int32
	}{
		{"trap 'exit 9' TERM", "", nil, time.Minute, 9, 0},
		{"trap 'exit 8' INT", "SIGINT", nil, time.Minute, 8, 0},
		{"trap 'exit 7' USR1", "", map[string]any{"stop_signal": "SIGUSR1"}, time.Minute, 7, 0},
		{"trap '' TERM", "", nil, 50 * time.Millisecond, 137, 9}, // it will not listen
		{"trap '' TERM", "SIGKILL", nil, time.Minute, 137, 9},
		{"trap '' TERM", "", nil, 0, 137, 9},
	} {
		task := r.given(fmt.Sprint("stopped", i), c.script+"; echo up; while true; do sleep 0.02; done", c.config)
		r.start(task)
		r.eventuallyIn(filepath.Join(r.dir, allocID, "alloc/logs", task.GetName()+".stdout.0"), "up")
		r.stop(task, c.signal, c.grace)
		// It is dead when the call returns.
		if st := r.inspect(task); st.GetState() != nomaddriver.TaskState_EXITED || st.GetResult().GetExitCode() != c.code {
			r.t.Errorf("%s, stopped by %q: %v", c.script, c.signal, st)
		}
		if w := r.wait(task.GetId()); w.GetResult().GetExitCode() != c.code || w.GetResult().GetSignal() != c.by || w.GetErr() != "" {
			r.t.Errorf("%s, stopped by %q: %v", c.script, c.signal, w)
		}
		r.stop(task, "", time.Second) // nothing is left to stop
		r.destroy(task)
	}
}

// TestTheRulesOfATasksLife: the driver obeys Nomad about ids, waiting and destroying.
func TestTheRulesOfATasksLife(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		task := r.given("rules", "echo up; sleep 1000 & sleep 1000; exit 1", nil)
		h := r.start(task)
		if h.GetConfig().GetId() != task.GetId() || h.GetVersion() < 1 || h.GetState() != nomaddriver.TaskState_RUNNING {
			t.Errorf("handle %v", h)
		}
		_, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: task})
		says(t, err, "already started")
		if st := r.inspect(task); st.GetState() != nomaddriver.TaskState_RUNNING || st.GetStartedAt().AsTime().IsZero() || st.GetName() != "rules" {
			t.Errorf("it is %v", st)
		}
		// A canceled wait leaves the task alone.
		ctx, cancel := context.WithCancel(t.Context())
		waited := make(chan error, 1)
		go func() {
			_, err := r.Driver.WaitTask(ctx, &nomaddriver.WaitTaskRequest{TaskId: task.GetId()})
			waited <- err
		}()
		cancel()
		if err := <-waited; status.Code(err) != codes.Canceled {
			t.Errorf("a wait that was given up: %v", err)
		}
		_, err = r.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: task.GetId()})
		says(t, err, "running task")
		_, err = r.Driver.SignalTask(t.Context(), &nomaddriver.SignalTaskRequest{TaskId: task.GetId(), Signal: "SIGNOTHING"})
		says(t, err, "SIGNOTHING")
		// A plugin that was killed is followed by one that knows the task as well.
		before := r.inspect(task)
		r.Signal(t, syscall.SIGKILL)
		r.Ended()
		r.Client = r.plugin(nil)
		for range 2 { // a known task is recovered again
			if _, err := r.Driver.RecoverTask(t.Context(), &nomaddriver.RecoverTaskRequest{Handle: h}); err != nil {
				t.Errorf("recover: %v", err)
			}
		}
		if after := r.inspect(task); after.String() != before.String() {
			t.Errorf("recovered as %v, was %v", after, before)
		}
		r.destroy(task)
		if left := nodetest.Processes("sleep", "1000"); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		r.unknown(task.GetId())
		r.nothingLeft()
	})
}

// unknown makes every call for a task that is not there.
func (r *rig) unknown(id string) {
	r.t.Helper()
	ctx := r.t.Context()
	const text = "task not found for given id"
	_, err := r.Driver.InspectTask(ctx, &nomaddriver.InspectTaskRequest{TaskId: id})
	says(r.t, err, text)
	_, err = r.Driver.WaitTask(ctx, &nomaddriver.WaitTaskRequest{TaskId: id})
	says(r.t, err, text)
	_, err = r.Driver.SignalTask(ctx, &nomaddriver.SignalTaskRequest{TaskId: id, Signal: "SIGHUP"})
	says(r.t, err, text)
	_, err = r.Driver.DestroyTask(ctx, &nomaddriver.DestroyTaskRequest{TaskId: id, Force: true})
	says(r.t, err, text)
	_, err = r.Driver.ExecTask(ctx, &nomaddriver.ExecTaskRequest{TaskId: id, Command: []string{"true"}})
	says(r.t, err, text)
	stats, err := r.Driver.TaskStats(ctx, &nomaddriver.TaskStatsRequest{TaskId: id})
	if err == nil {
		_, err = stats.Recv()
	}
	says(r.t, err, text)
	if _, err = r.Driver.StopTask(ctx, &nomaddriver.StopTaskRequest{TaskId: id}); err != nil {
		r.t.Errorf("stop of what is gone: %v", err)
	}
}

func says(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) || status.Code(err) == codes.Unavailable {
		t.Errorf("got %v, want %q", err, text)
	}
}

// TestTasksThatCannotBe: each is refused with its fault, says whether it helps to try again,
// and leaves nothing.
func TestTasksThatCannotBe(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		ref := func(name string) string { return strings.Replace(r.image, "busybox:1", name, 1) }
		r.write("cannot/local/file", "text")
		files, err := imagetest.Busybox("/bin/busybox", "sh", "sleep")
		if err != nil {
			t.Fatal(err)
		}
		linked := func(to string) string {
			link := []imagetest.File{{Name: "dev", Link: to}, {Name: "file", Body: []byte("text")}}
			return imagetest.NewRegistry(t).Push("linked", "1", imagetest.Image{Layers: [][]imagetest.File{files, link}}.Build())
		}
		for _, c := range []struct {
			text   string
			config map[string]any
			change func(t *nomaddriver.TaskConfig)
			again  bool
		}{
			{"image name required", map[string]any{"image": nil}, nil, false},
			{"manifest unknown", map[string]any{"image": ref("busybox:nowhere")}, nil, false},
			{"connection refused", map[string]any{"image": "127.0.0.1:1/busybox:1"}, nil, true},
			{"unknown user alice", nil, func(t *nomaddriver.TaskConfig) { t.User = "alice" }, false},
			{"/bin/nowhere", map[string]any{"command": "/bin/nowhere"}, nil, false},
			{"/nowhere", map[string]any{"work_dir": "relative/nowhere"}, nil, false},
			{"net_admin, sys_time", map[string]any{"cap_add": []string{"net_admin", "mknod", "CAP_SYS_TIME"}}, nil, false},
			{"unknown capability", map[string]any{"cap_add": []string{"nothing"}}, nil, false},
			{"privileged", map[string]any{"privileged": true}, nil, false},
			{"pid_mode", map[string]any{"pid_mode": "host"}, nil, false},
			{"volumes.enabled", map[string]any{"volumes": []string{"/etc:/host"}}, nil, false},
			{"volumes.enabled", map[string]any{"mounts": []any{map[string]any{"type": "bind", "source": "../../../..", "target": "/host"}}}, nil, false},
			{"host_path", map[string]any{"devices": []any{map[string]any{"host_path": ""}}}, nil, false},
			{"rxb", nil, func(t *nomaddriver.TaskConfig) {
				t.Devices = []*nomaddriver.Device{{TaskPath: "/dev/x", HostPath: "/dev/zero", CgroupPermissions: "rxb"}}
			}, false},
			{"config.cdi_devices is not permitted", map[string]any{"cdi_devices": []string{"example.com/gpu=0"}}, nil, false},
			{"allow_privileged", map[string]any{"devices": []any{map[string]any{"host_path": "/dev/zero"}}}, nil, false},
			{"/dev/nowhere", nil, func(t *nomaddriver.TaskConfig) {
				t.Devices = []*nomaddriver.Device{{TaskPath: "/dev/x", HostPath: "/dev/nowhere", CgroupPermissions: "r"}}
			}, false},
			{"nofile", map[string]any{"ulimit": []any{map[string]any{"nofile": "444:333"}}}, nil, false},
			{"nofile", map[string]any{"ulimit": []any{map[string]any{"nofile": ""}}}, nil, false},
			{"abc:1234", map[string]any{"ulimit": []any{map[string]any{"nofile": "abc:1234"}}}, nil, false},
			{"1234:abc", map[string]any{"ulimit": []any{map[string]any{"nofile": "1234:abc"}}}, nil, false},
			{"ulimit", map[string]any{"ulimit": []any{map[string]any{"nothing": "1"}}}, nil, false},
			{"kernel.nothing", map[string]any{"sysctl": []any{map[string]any{"kernel.nothing": "1"}}}, nil, false},
			{"healthchecks", map[string]any{"healthchecks": map[string]any{"disable": false}}, nil, false},
			{"use a service block", map[string]any{"network_aliases": []string{"db"}}, nil, false},
			{"use ipv4_address", map[string]any{"mac_address": "02:00:00:00:00:01"}, nil, false},
			{"network is host: use network_mode", map[string]any{"ipv4_address": "192.0.2.7"}, nil, false},
			{"in none of the ranges", map[string]any{"ipv4_address": "192.0.2.7", "network_mode": "bridge"}, nil, false},
			{"no such file", map[string]any{"load": "none.tar"}, nil, false},
			{"port", map[string]any{"ports": []string{"http"}}, nil, false},
			{"colour", map[string]any{"colour": "blue"}, nil, false},
			{"create /v/file: read-only file system", map[string]any{"volumes": []string{"local/dir:/v:ro", "local/file:/v/file"}}, nil, true},
			{"make /v/more: read-only file system", map[string]any{"volumes": []string{"local/dir:/v:ro", "local/more:/v/more"}}, nil, true},
			{"path /dev in the root, where /dev is a link to /file: it is a file", map[string]any{"image": linked("/file")}, nil, false},
			{"path /dev in the root, where /dev is a link to dev: too many levels", map[string]any{"image": linked("dev")}, nil, false},
		} {
			task := r.given("cannot", "sleep 1000", c.config)
			if c.change != nil {
				c.change(task)
			}
			_, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: task})
			says(t, err, c.text)
			d := status.Convert(err).Details()
			if len(d) == 0 {
				t.Errorf("%v: no details", err)
				continue
			}
			if e, ok := d[0].(*nomadstructs.RecoverableError); !ok || e.GetRecoverable() != c.again {
				t.Errorf("%v: %v, want %v", err, d[0], c.again)
			}
		}
		r.nothingLeft()
	})
}

// TestNoSysctlOfTheMachine: a job sets parameters of its own namespaces only,
// however it writes their names.
func TestNoSysctlOfTheMachine(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		sysctltest.Unchanged(t)
		sysctltest.Control(t)
		r := newRig(t, nil)
		value := sysctltest.Value(t)
		for _, key := range sysctltest.Escapes() {
			task := r.given("sysctl", "true", map[string]any{"sysctl": []any{map[string]any{key: value}}})
			_, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: task})
			says(t, err, "config.sysctl")
		}
		r.nothingLeft()
	})
}

// TestManyAtOnce starts tasks side by side, and ends them so.
func TestManyAtOnce(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		const n = 12
		var all sync.WaitGroup
		for i := range n {
			task := r.given(fmt.Sprint("many", i), fmt.Sprintf("echo I am %d; exit %d", i, i), nil)
			all.Go(func() {
				if _, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: task}); err != nil {
					t.Error(err)
					return
				}
				w, err := r.Driver.WaitTask(t.Context(), &nomaddriver.WaitTaskRequest{TaskId: task.GetId()})
				if err != nil || w.GetResult().GetExitCode() != int32(i) {
					t.Errorf("task %d: %v, %v", i, w, err)
				}
				if out, err := os.ReadFile(filepath.Join(r.dir, allocID, "alloc/logs", task.GetName()+".stdout.0")); err != nil || string(out) != fmt.Sprintf("I am %d\n", i) {
					t.Errorf("task %d said %q, %v", i, out, err)
				}
				if _, err := r.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: task.GetId(), Force: true}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		r.nothingLeft()
	})
}
