package attack

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/face/mesos/fetch/store"
	"github.com/longshore/longshore/internal/weaken"
	"github.com/longshore/longshore/test/nodetest"
)

// holeAttempts use vulnerabilities that Longshore once had.
func holeAttempts() []attempt {
	all := []attempt{
		{name: "a process that execs, before it is inside", actor: containerRoot, weak: weaken.PidNamespaceLast, run: func(t *testing.T, w *world) result { return w.newcomers(t, containerRoot) }},
		{name: "a process that execs, before it is inside", actor: withPtrace, weak: weaken.PidNamespaceLast, run: func(t *testing.T, w *world) result { return w.newcomers(t, withPtrace) }},
		{name: "fill the node's memory through /etc", actor: containerRoot, weak: weaken.SharedEtc, run: func(t *testing.T, w *world) result { return fillEtc(t, w, containerRoot) }},
		{name: "fill the node's memory through /etc", actor: withoutAdmin, weak: weaken.SharedEtc, run: func(t *testing.T, w *world) result { return fillEtc(t, w, withoutAdmin) }},
		{name: "change /dev/null through a hidden file", actor: containerRoot, weak: weaken.HostNull, run: func(t *testing.T, w *world) result { return changeNull(t, w, containerRoot) }},
		{name: "change /dev/null through a hidden file", actor: withoutAdmin, weak: weaken.HostNull, run: func(t *testing.T, w *world) result { return changeNull(t, w, withoutAdmin) }},
		{name: "nomad: a bind of what its other mounts are made of", actor: jobAuthor, weak: weaken.NomadBinds + "," + weaken.Beneath, run: bindAbove},
		{name: "nomad: a link in the place of its directory", actor: jobAuthor, weak: weaken.Beneath, run: linkedDirectory},
		{name: "nomad: a link in the place of its logs", actor: jobAuthor, weak: weaken.Beneath, run: linkedLogs},
		{name: "pod: a link in the way of its log", actor: jobAuthor, weak: weaken.Beneath, run: linkedLog},
		{name: "mesos: what is fetched is stored unconfined", actor: jobAuthor, weak: weaken.MesosUnpacker, run: unpacker},
		{name: "nomad: a device by its CDI name", actor: jobAuthor, weak: weaken.NomadCDI, run: func(t *testing.T, w *world) result {
			return w.job(t, table{"cdi_devices": []string{"longshore.test/host=all"}}, nil)
		}},
		{name: "pod: write to an image that others use", actor: jobAuthor, weak: weaken.BareLayer, run: sharedLayer},
		{name: "mesos: a file of the host by a URI", actor: jobAuthor, run: fileURI},
		{name: "mesos: a file that its user may not read, by a URI", actor: jobAuthor, run: fileOfAnother},
	}
	return all
}

// alone runs a container of its own for an actor and returns its output.
func (w *world) alone(t *testing.T, a actor, set func(*runtimeapi.ContainerConfig), command ...string) (string, int32) {
	t.Helper()
	w.jobs++
	c := w.attacker(fmt.Sprint("once", w.jobs), a) // each has a log of its own
	c.Command = command
	if set != nil {
		set(c)
	}
	made := w.container(t, a).Pod.Run(t, c)
	st := made.WaitExited(t)
	out := made.ReadLog(t)
	_, _ = w.CRI.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: made.ID})
	return out, st.GetExitCode()
}

// newcomers makes a container's root inspect every process that appears in its pid namespace
// while others are started in it.
func (w *world) newcomers(t *testing.T, a actor) result {
	t.Helper()
	c := w.container(t, a)
	how := "look"
	if a == withPtrace {
		how = "seize"
	}
	if out, code := w.sh(t, c, "rm -rf /tmp/watch; mkdir /tmp/watch"); code != 0 {
		return is(unmade, "%s", out)
	}
	watched := make(chan result, 1)
	go func() { watched <- w.probe(t, c, "watch newcomers", w.secret, "/tmp/watch", how) }()
	nodetest.Eventually(t, "the attacker watches", func() bool { _, code := w.sh(t, c, "test -e /tmp/watch/ready"); return code == 0 })
	times, found := 60*rounds(), false
	if w.weak != "" {
		times = 1000
	}
	for i := 0; i < times && !found; i++ {
		if _, err := w.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/true"}, Timeout: 60}); err != nil {
			return is(unmade, "exec: %v", err)
		}
		select {
		case r := <-watched:
			return r
		default:
		}
	}
	if out, code := w.sh(t, c, "touch /tmp/watch/stop"); code != 0 {
		return is(unmade, "%s", out)
	}
	return <-watched
}

// fillEtc writes to the files of /etc that the node has made.
func fillEtc(t *testing.T, w *world, a actor) result {
	t.Helper()
	room := func() int64 {
		var st unix.Statfs_t
		if err := unix.Statfs(w.State, &st); err != nil {
			t.Fatal(err)
		}
		return int64(st.Bavail) * st.Bsize
	}
	before := room()
	const script = "for f in /etc/hosts /etc/resolv.conf /etc/hostname; do dd if=/dev/zero of=$f bs=1048576 count=24 2>&1 | tail -n 1; done; echo tried; while ! test -e /tmp/end; do sleep 0.05; done; for f in /etc/hosts /etc/resolv.conf /etc/hostname; do echo > $f; done"
	w.jobs++
	c := w.attacker(fmt.Sprint("filler", w.jobs), a)
	c.Command = []string{"/bin/sh", "-c", script}
	made := w.container(t, a).Pod.Run(t, c)
	nodetest.Eventually(t, "it has written", func() bool { return strings.Contains(made.ReadLog(t), "F tried\n") })
	lost, said := before-room(), made.ReadLog(t)
	_, _ = w.sh(t, made, "touch /tmp/end")
	made.WaitExited(t)
	_, _ = w.CRI.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: made.ID})
	if lost > 4<<20 {
		return is(reached, "%d bytes of %s are gone", lost, w.State)
	}
	return is(bounded, "%d bytes of the node's state are gone: %s", max(lost, 0), one(said))
}

// changeNull changes the mode of the device that hides files. The world's /dev is its
// own.
func changeNull(t *testing.T, w *world, a actor) result {
	t.Helper()
	mode := func() os.FileMode {
		st, err := os.Stat("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		return st.Mode()
	}
	before := mode()
	if before != os.ModeDevice|os.ModeCharDevice|0o666 {
		return is(unmade, "/dev/null is %v", before)
	}
	out, _ := w.alone(t, a, nil, "/bin/sh", "-c", "/bin/busybox chmod 640 /proc/timer_list 2>&1; ls -l /proc/timer_list")
	if after := mode(); after != before {
		_ = os.Chmod("/dev/null", 0o666)
		return is(reached, "the host's /dev/null was %v and is %v", before, after)
	}
	if !strings.Contains(out, "timer_list") {
		return is(unmade, "%s", out)
	}
	return is(refused, "%s", one(out))
}

// bindAbove binds the allocation's directory, which contains the task's directories.
func bindAbove(t *testing.T, w *world) result {
	r := w.job(t, table{"volumes": []string{"..:/up"}, "args": []string{"-c", "mv /up/$NOMAD_TASK_NAME/local /up/$NOMAD_TASK_NAME/was && ln -s / /up/$NOMAD_TASK_NAME/local && cp /etc/passwd /alloc/data/replaced; grep CapEff /proc/self/status"}}, nil)
	replaced := filepath.Join(w.Dir, "alloc", allocID, "alloc/data/replaced")
	if _, err := os.Stat(replaced); err == nil {
		_ = os.Remove(replaced)
		return is(reached, "it has put a link in the place of its directory: %s", r.Evidence)
	}
	return r
}

// linkedDirectory starts a task after its directory became a link to the host's root.
func linkedDirectory(t *testing.T, w *world) result {
	return w.job(t, table{"args": []string{"-c", "cat /local" + w.secret + "; grep CapEff /proc/self/status"}}, func(task *nomaddriver.TaskConfig) {
		local := filepath.Join(task.GetAllocDir(), task.GetName(), "local")
		if err := os.Remove(local); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/", local); err != nil {
			t.Fatal(err)
		}
	})
}

// linkedLogs starts a task with its log directory linked to one of the host's.
func linkedLogs(t *testing.T, w *world) result {
	logs := filepath.Join(w.Dir, "alloc", allocID, "alloc/logs")
	victim := t.TempDir()
	var r result
	if err := os.MkdirAll(logs, 0o777); err != nil {
		return is(unmade, "%v", err)
	}
	r = w.job(t, table{"args": []string{"-c", "echo written; grep CapEff /proc/self/status"}}, func(*nomaddriver.TaskConfig) {
		if err := os.Rename(logs, logs+".was"); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(victim, logs); err != nil {
			t.Fatal(err)
		}
	})
	_ = os.Remove(logs)
	_ = os.Rename(logs+".was", logs)
	if entries, err := os.ReadDir(victim); err != nil || len(entries) > 0 {
		return is(reached, "in the host's directory there is %v, %v", entries, err)
	}
	return r
}

// linkedLog puts a link into the path of a container's log.
func linkedLog(t *testing.T, w *world) result {
	victim := t.TempDir()
	cfg := w.PodConfig("linked")
	if err := os.MkdirAll(cfg.GetLogDirectory(), 0o755); err != nil {
		return is(unmade, "%v", err)
	}
	if err := os.Symlink(victim, filepath.Join(cfg.GetLogDirectory(), "sub")); err != nil {
		return is(unmade, "%v", err)
	}
	r := w.evilPod(t, cfg, func(c *runtimeapi.ContainerConfig) { c.LogPath = "sub/0.log" })
	_ = os.RemoveAll(cfg.GetLogDirectory())
	if entries, err := os.ReadDir(victim); err != nil || len(entries) > 0 {
		return is(reached, "in the host's directory there is %v, %v", entries, err)
	}
	return r
}

// unpacker inspects the process that unpacks an untrusted archive meanwhile: unconfined, a
// vulnerable archive reader would have all its rights.
func unpacker(t *testing.T, w *world) result {
	asked, done := make(chan struct{}), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Length", "1048576")
		_, _ = rw.Write(make([]byte, 1024))
		if f, ok := rw.(http.Flusher); ok {
			f.Flush()
		}
		close(asked)
		select {
		case <-done:
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	ended := make(chan string, 1)
	go func() {
		code, text, err := w.mesosPost(t, fmt.Sprintf(`{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"fetcher"},"command":{"value":"true","user":"nobody","uris":[{"value":"%s/archive.tar"}]},"container":{"type":"MESOS","mesos":{"image":{"type":"DOCKER","docker":{"name":%q}}}}}}`, srv.URL, w.image))
		ended <- fmt.Sprint(code, " ", text, " ", err)
	}()
	defer func() { close(done); <-ended }()
	select {
	case <-asked:
	case said := <-ended:
		ended <- said
		return is(unmade, "nothing was fetched: %s", said)
	case <-time.After(time.Minute):
		return is(unmade, "nothing was fetched")
	}
	var last string
	var unconfined bool
	nodetest.Eventually(t, "the process that unpacks reads", func() bool {
		entries, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, e := range entries {
			b, err := os.ReadFile(e)
			if err != nil || !strings.Contains(string(b), "\x00"+store.Arg) {
				continue
			}
			status, err := os.ReadFile(filepath.Dir(e) + "/status")
			if err != nil {
				continue
			}
			var f []string
			for line := range strings.Lines(string(status)) {
				for _, key := range []string{"Uid:", "CapEff:", "NoNewPrivs:", "Seccomp:"} {
					if strings.HasPrefix(line, key) {
						f = append(f, strings.Join(strings.Fields(line), " "))
					}
				}
			}
			last = strings.Join(f, ", ")
			unconfined = !strings.Contains(last, "Seccomp: 2") || !strings.Contains(last, "NoNewPrivs: 1")
			// It runs as its user from the start; it gives up the rest before it reads.
			wchan, _ := os.ReadFile(filepath.Dir(e) + "/syscall")
			return strings.Contains(last, "Uid: 65534") && (!unconfined || len(wchan) > 0 && w.weak != "")
		}
		return false
	})
	if unconfined {
		return is(reached, "%s", last)
	}
	return is(refused, "%s", last)
}

// fileURI makes the agent read a file of the host for a container.
func fileURI(t *testing.T, w *world) result {
	var last result
	for _, uri := range []string{"file://" + w.secret, w.secret, "file:///etc/shadow", "file://localhost/" + w.secret} {
		last = w.mesosCall(t, fmt.Sprintf(`{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"file"},"command":{"value":"true","uris":[{"value":%q}]},"container":IMAGE}}`, uri))
		if last.Outcome != refused {
			return last
		}
	}
	return last
}

// fileOfAnother makes the agent read root's file for a command that runs as nobody, below a
// directory that commands may fetch from. Its controls are a file that nobody may read, and the
// same file for root.
func fileOfAnother(t *testing.T, w *world) result {
	launches := 0
	fetch := func(user, uri string) (int, string, error) {
		launches++
		id := fmt.Sprint("another", launches)
		code, text, err := w.mesosPost(t, fmt.Sprintf(`{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":%q},"command":{"value":"true","user":%q,"uris":[{"value":%q}]},"container":{"type":"MESOS","mesos":{"image":{"type":"DOCKER","docker":{"name":%q}}}}}}`, id, user, uri, w.image))
		if code < 400 {
			for _, kind := range []string{"wait", "remove"} {
				_, _, _ = w.mesosPost(t, fmt.Sprintf(`{"type":"%s_CONTAINER","%s_container":{"container_id":{"value":%q}}}`, strings.ToUpper(kind), kind, id))
			}
		}
		return code, text, err
	}
	for _, control := range []struct{ user, file string }{{"nobody", "public"}, {"root", "private"}} {
		code, text, err := fetch(control.user, "file://"+filepath.Join(w.files, control.file))
		if err != nil || code >= 400 {
			return is(unmade, "%s by %s: %d %s, %v", control.file, control.user, code, text, err)
		}
	}
	var last result
	for _, of := range []struct{ user, file string }{{"nobody", "private"}, {"root", "out"}, {"root", "../secret"}} {
		code, text, err := fetch(of.user, "file://"+w.files+"/"+of.file)
		if err != nil {
			return is(unmade, "%v", err)
		}
		if code < 400 {
			return is(reached, "%s by %s: %d %s", of.file, of.user, code, text)
		}
		last = is(refused, "%s by %s: %d %s", of.file, of.user, code, text)
	}
	return last
}

// sharedLayer makes an image's mount writable, as SYS_ADMIN allows, and writes to files
// that other containers of the image share.
func sharedLayer(t *testing.T, w *world) result {
	said, _ := w.alone(t, containerRoot, func(c *runtimeapi.ContainerConfig) {
		sc := c.Linux.SecurityContext
		sc.Capabilities.AddCapabilities = []string{"SYS_ADMIN"}
		sc.Seccomp.ProfileType = runtimeapi.SecurityProfile_Unconfined
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{ContainerPath: "/image", Image: &runtimeapi.ImageSpec{Image: w.image}, Readonly: true})
	}, "/bin/sh", "-c", "/bin/busybox mount -o remount,bind,rw /image 2>&1; /bin/busybox mount -o remount,rw /image 2>&1; echo changed > /image/bin/changed; echo tried")
	if !strings.Contains(said, "tried") {
		return is(unmade, "%s", said)
	}
	other, _ := w.alone(t, containerRoot, nil, "/bin/sh", "-c", "cat /bin/changed 2>&1; echo looked")
	switch {
	case strings.Contains(other, "F changed"):
		return is(reached, "another container of the image has the file: %s", one(other))
	case !strings.Contains(other, "looked"):
		return is(unmade, "%s", other)
	}
	return is(refused, "%s", one(said))
}

func one(s string) string { return strings.Join(strings.Fields(s), " ") }
