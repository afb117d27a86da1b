package present

import (
	"cmp"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/dockertypes"
)

// container returns the document of inspect for a container. Own members are podman's, and our own.
func container(r map[string]any) Filled {
	o := object(r)
	args := o.texts("main", "args")
	if len(args) == 0 {
		args = o.texts("spec", "process", "args")
	}
	program, rest := "", []string{}
	if len(args) > 0 {
		program, rest = args[0], args[1:]
	}
	logPath := ""
	if sinks := o.objects("config", "io", "sinks"); len(sinks) > 0 {
		logPath = sinks[0].text("path")
	}
	policy, restarts, _ := restarting(o)
	mounted := mounts(o)
	c := &dockertypes.Container{
		ContainerJSONBase: &dockertypes.ContainerJSONBase{
			ID: o.text("id"), Created: o.text("created"), Path: program, Args: rest, State: state(o), Image: o.text("image"), LogPath: logPath,
			Name: "/" + o.text("name"), RestartCount: restarts, Driver: storageDriver, Platform: "linux",
			AppArmorProfile: o.text("spec", "process", "apparmorProfile"), ProcessLabel: o.text("spec", "process", "selinuxLabel"), MountLabel: o.text("config", "file_label"), ExecIDs: execs(o), HostConfig: hostConfig(o, mounted),
			GraphDriver: graphDriver(o.textMap("layers")),
		},
		Config: config(o, args), NetworkSettings: network(o), Mounts: []dockertypes.MountPoint{},
	}
	c.HostConfig.RestartPolicy = policy
	options := []map[string]any{}
	for _, m := range mounted {
		c.Mounts = append(c.Mounts, m.MountPoint)
		options = append(options, map[string]any{"Options": m.options})
	}
	return filled(c, map[string]any{
		"ImageName": o.text("image_name"), "Owner": o.text("owner"), "Pod": o.text("sandbox"), "OCIRuntime": o.text("runtime"), "Mounts": options, "Record": r,
		"State":  map[string]any{"Why": o.text("main", "autopsy", "verdict"), "CgroupPath": o.text("cgroup", "path")},
		"Config": map[string]any{"Annotations": orEmpty(o.at("spec", "annotations"))},
	})
}

// Container returns the IDs of a container and of its sandbox, if f is the document of one.
func (f Filled) Container() (id, sandbox string, ok bool) {
	c, ok := f.typed.(*dockertypes.Container)
	if ok {
		id, sandbox = c.ID, object(f.whole).text("Pod")
	}
	return id, sandbox, ok
}

// WithSizes returns a container's document with the size of its changes, and the size of changes and image together.
func (f Filled) WithSizes(of *longshorev1.Container) Filled {
	c, ok := f.typed.(*dockertypes.Container)
	if !ok || of.SizeRw == nil {
		return f
	}
	changes := int64(min(of.GetSizeRw(), math.MaxInt64))
	all := int64(min(of.GetSizeRw()+of.GetSizeImage(), math.MaxInt64))
	c.SizeRw, c.SizeRootFs = &changes, &all
	f.whole["SizeRw"], f.whole["SizeRootFs"] = changes, all
	return f
}

// orEmpty returns m, or an empty object for nil, so that a template need not test for it.
func orEmpty(m any) any {
	if m == nil {
		return map[string]any{}
	}
	return m
}

// restarting returns a container's restart policy, the number of its restarts, and whether it waits for its next start.
func restarting(o object) (policy dockertypes.RestartPolicy, count int, waits bool) {
	policy = dockertypes.RestartPolicy{Name: cmp.Or(o.text("config", "restart", "name"), "no"), MaximumRetryCount: int(o.number("config", "restart", "max"))}
	state := o.text("state")
	return policy, int(o.number("restarts", "count")), o.text("restarts", "due") != "" && (state == "exited" || state == "created")
}

// neverTime is docker's value of an unset time.
const neverTime = "0001-01-01T00:00:00Z"

func state(o object) *dockertypes.State {
	status := o.text("state")
	exit := o.object("main", "autopsy", "exit")
	code := exit.number("code")
	switch {
	case exit.boolean("lost"):
		code = 255
	case exit.number("signal") != 0:
		code = 128 + exit.number("signal")
	}
	s := &dockertypes.State{
		Status: status, Running: status == "running" || status == "paused", Paused: status == "paused",
		OOMKilled: o.boolean("main", "autopsy", "oom", "main"), ExitCode: int(code), Error: cmp.Or(o.text("restarts", "error"), o.text("main", "autopsy", "start")),
		StartedAt: cmp.Or(o.text("main", "started"), neverTime), FinishedAt: cmp.Or(o.text("main", "finished"), neverTime),
	}
	if _, _, waits := restarting(o); waits {
		s.Status, s.Running, s.Restarting = "restarting", true, true
	} else if s.Running { // a created container has a process, which is not its program yet
		s.Pid = int(o.number("main", "pid"))
	}
	if h := o.object("health_status"); h != nil {
		s.Health = &dockertypes.Health{Status: h.text("Status"), FailingStreak: int(h.number("FailingStreak")), Log: []*dockertypes.Probe{}}
		for _, p := range h.objects("Log") {
			probe := &dockertypes.Probe{ExitCode: int(p.number("ExitCode")), Output: p.text("Output")}
			// A time that is none stays docker's zero.
			probe.Start, _ = time.Parse(time.RFC3339Nano, p.text("Start"))
			probe.End, _ = time.Parse(time.RFC3339Nano, p.text("End"))
			s.Health.Log = append(s.Health.Log, probe)
		}
	}
	return s
}

// execs returns the IDs of the running execs, nil for none.
func execs(o object) (ids []string) {
	for _, p := range o.objects("execs") {
		if !p.has("finished") {
			ids = append(ids, p.text("id"))
		}
	}
	return ids
}

// mountPoint is a mount with all its options.
type mountPoint struct {
	dockertypes.MountPoint
	options   []string
	anonymous bool
}

// mounts returns the mounts of the user's request, without those that every container has.
func mounts(o object) (list []mountPoint) {
	volumes := map[string]object{}
	for _, v := range o.objects("config", "volumes") {
		volumes[v.text("target")] = v
	}
	inMemory := o.object("shown", "tmpfs")
	for _, m := range o.objects("spec", "mounts") {
		shown := mountPoint{options: orNone(m.texts("options"))}
		shown.Source, shown.Destination, shown.Type = m.text("source"), m.text("destination"), m.text("type")
		shown.RW = !slices.Contains(shown.options, "ro")
		volume, isVolume := volumes[shown.Destination]
		switch {
		case isVolume:
			shown.Type, shown.Name, shown.Driver, shown.Mode = "volume", volume.text("name"), "local", "z"
			if shown.anonymous = volume.text("labels", anonymousLabel) != ""; shown.anonymous {
				shown.Mode = ""
			}
		case strings.HasPrefix(shown.Source, o.text("bundle")+"/images/"):
			shown.Type, shown.Name, shown.Source = "image", imageMounted(o, shown.Destination), ""
		case isStandardMount(shown.Destination), inMemory.has(shown.Destination):
			continue
		case slices.Contains(shown.options, "bind") || slices.Contains(shown.options, "rbind"):
			shown.Type = "bind"
		case shown.Type == "tmpfs":
			shown.Source = ""
		}
		if shown.Type == "bind" {
			for _, p := range []string{"rprivate", "private", "rslave", "slave", "rshared", "shared"} {
				if slices.Contains(shown.options, p) {
					shown.Propagation = p
				}
			}
		}
		if !shown.RW {
			shown.Mode = "ro"
		}
		list = append(list, shown)
	}
	return list
}

// imageMounted returns the name of the image or artifact that is mounted at target or above it, as the request has it.
func imageMounted(o object, target string) string {
	for _, m := range o.objects("shown", "mounts") {
		at := path.Clean(m.text("target"))
		if kind := m.text("type"); (kind == "image" || kind == "artifact") && (target == at || strings.HasPrefix(target, at+"/")) {
			return m.text("source")
		}
	}
	return ""
}

// anonymousLabel marks a volume that was made for one container (core.AnonymousLabel).
const anonymousLabel = "longshore.anonymous"

// isStandardMount reports whether target is the target of a mount that every container has.
func isStandardMount(target string) bool {
	for _, own := range []string{"/proc", "/sys", "/dev"} {
		if target == own || strings.HasPrefix(target, own+"/") {
			return true
		}
	}
	return slices.Contains([]string{"/etc/resolv.conf", "/etc/hosts", "/etc/hostname"}, target)
}

// config returns the part of the configuration that does not depend on the host. A container of the
// command line has the request's, completed by the image's, as in docker; another one has the spec's.
func config(o object, args []string) *dockertypes.Config {
	image, asked, stdin := o.object("image_config"), o.object("asked"), o.text("config", "io", "stdin")
	c := &dockertypes.Config{
		Hostname: o.text("network", "hostname"), Domainname: o.text("network", "domainname"), Env: orNone(o.texts("spec", "process", "env")), Cmd: args,
		Image:  cmp.Or(o.text("shown", "image"), o.text("image_name"), o.text("image")),
		Labels: map[string]string{}, WorkingDir: o.text("spec", "process", "cwd"), Tty: o.boolean("config", "io", "tty"),
		OpenStdin: stdin == "open" || stdin == "once", StdinOnce: stdin == "once",
		StopSignal: cmp.Or(o.text("config", "stop", "signal"), image.text("StopSignal")), Healthcheck: healthcheck(o),
	}
	if uid, gid := o.number("spec", "process", "user", "uid"), o.number("spec", "process", "user", "gid"); uid != 0 || gid != 0 {
		c.User = strconv.FormatInt(uid, 10) + ":" + strconv.FormatInt(gid, 10)
	}
	if grace := o.number("shown", "stop_grace"); o.has("shown", "stop_grace") {
		seconds := int(grace / 1e9)
		c.StopTimeout = &seconds
	}
	if asked != nil && image != nil {
		c.User, c.WorkingDir = cmp.Or(asked.text("user"), image.text("User")), cmp.Or(asked.text("workdir"), image.text("WorkingDir"))
		c.Entrypoint, c.Cmd = command(asked, image)
		c.Volumes, c.OnBuild, c.Shell = image.members("Volumes"), image.texts("OnBuild"), image.texts("Shell")
		maps.Copy(c.Labels, image.textMap("Labels"))
	}
	maps.Copy(c.Labels, o.textMap("labels"))
	for _, p := range o.objects("network", "config_ports") {
		expose(c, portOf(p))
	}
	for p := range image.object("ExposedPorts") {
		expose(c, dockertypes.Port(p))
	}
	for _, p := range asked.texts("expose") {
		for _, one := range exposedRange(p) {
			expose(c, one)
		}
	}
	return c
}

func expose(c *dockertypes.Config, p dockertypes.Port) {
	if c.ExposedPorts == nil {
		c.ExposedPorts = map[dockertypes.Port]struct{}{}
	}
	c.ExposedPorts[p] = struct{}{}
}

// exposedRange returns the ports of PORT[-PORT][/PROTOCOL].
func exposedRange(s string) (list []dockertypes.Port) {
	numbers, proto, found := strings.Cut(s, "/")
	if !found {
		proto = "tcp"
	}
	first, last, isRange := strings.Cut(numbers, "-")
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 16)
	to, terr := strconv.ParseUint(last, 10, 16)
	if err != nil || terr != nil { // the agent has accepted it: it is shown as it is
		return []dockertypes.Port{dockertypes.Port(s)}
	}
	for n := from; n <= to; n++ {
		list = append(list, dockertypes.Port(strconv.FormatUint(n, 10)+"/"+proto))
	}
	return list
}

// command returns the entry point and the command of a request, completed by those of the image.
func command(asked, image object) (entrypoint, cmd []string) {
	cmd = asked.texts("command")
	switch {
	case asked.text("entrypoint") != "":
		return []string{asked.text("entrypoint")}, cmd
	case asked.boolean("clear_entrypoint"):
		return nil, cmd
	case len(cmd) == 0:
		cmd = image.texts("Cmd")
	}
	return image.texts("Entrypoint"), cmd
}

// healthcheck returns the health check of the request, completed by the image's; nil for none.
func healthcheck(o object) *dockertypes.HealthConfig {
	asked, image := o.object("shown", "health"), o.object("image_config", "Healthcheck")
	if asked == nil && image == nil {
		return settledCheck(o.object("health_check"))
	}
	number := func(name string) int64 { return cmp.Or(asked.number(name), image.number(name)) }
	h := &dockertypes.HealthConfig{
		Test: asked.texts("Test"), Interval: time.Duration(number("Interval")), Timeout: time.Duration(number("Timeout")),
		StartPeriod: time.Duration(number("StartPeriod")), StartInterval: time.Duration(number("StartInterval")), Retries: int(number("Retries")),
	}
	if len(h.Test) == 0 {
		h.Test = image.texts("Test")
	}
	return h
}

// settledCheck converts a health check with its defaults to docker's form: a command of the shell becomes CMD-SHELL.
func settledCheck(c object) *dockertypes.HealthConfig {
	if c == nil {
		return nil
	}
	h := &dockertypes.HealthConfig{
		Test: c.texts("Test"), Interval: time.Duration(c.number("Interval")), Timeout: time.Duration(c.number("Timeout")),
		StartPeriod: time.Duration(c.number("StartPeriod")), StartInterval: time.Duration(c.number("StartInterval")), Retries: int(c.number("Retries")),
	}
	if t := h.Test; len(t) == 4 && t[0] == "CMD" && t[1] == "/bin/sh" && t[2] == "-c" {
		h.Test = []string{"CMD-SHELL", t[3]}
	}
	return h
}

// image returns the document of inspect for an image.
func image(r map[string]any) Filled {
	o := object(r)
	c := o.object("config", "config")
	img := &dockertypes.Image{
		ID: o.text("id"), RepoTags: []string{}, RepoDigests: []string{}, Created: o.text("config", "created"), Author: o.text("config", "author"),
		Architecture: o.text("config", "architecture"), Variant: o.text("config", "variant"), Os: o.text("config", "os"), OsVersion: o.text("config", "os.version"),
		Size: o.number("size_bytes"), RootFS: dockertypes.RootFS{Type: "layers", Layers: orNone(o.texts("config", "rootfs", "diff_ids"))}, GraphDriver: graphDriver(nil),
		Config: &dockertypes.ImageConfig{
			OCIConfig: dockertypes.OCIConfig{
				User: c.text("User"), ExposedPorts: c.members("ExposedPorts"), Env: c.texts("Env"), Entrypoint: c.texts("Entrypoint"), Cmd: c.texts("Cmd"),
				Volumes: c.members("Volumes"), WorkingDir: c.text("WorkingDir"), Labels: c.textMap("Labels"), StopSignal: c.text("StopSignal"), ArgsEscaped: c.boolean("ArgsEscaped"),
			},
			OCIConfigExt: dockertypes.OCIConfigExt{Healthcheck: settledCheck(o.object("health")), OnBuild: c.texts("OnBuild"), Shell: o.texts("shell")},
		},
	}
	if steps := o.objects("config", "history"); len(steps) > 0 {
		img.Comment = steps[len(steps)-1].text("comment")
	}
	for _, n := range o.texts("names") {
		img.RepoTags = append(img.RepoTags, Familiar(n))
	}
	for _, n := range o.texts("digests") {
		img.RepoDigests = append(img.RepoDigests, Familiar(n))
	}
	// A time that is none stays docker's zero.
	img.Metadata.LastTagTime, _ = time.Parse(time.RFC3339Nano, o.text("pulled"))
	history := o.at("config", "history")
	if history == nil {
		history = []any{}
	}
	return filled(img, map[string]any{
		"Digest": o.text("digest"), "VirtualSize": o.number("unpacked_bytes"), "History": history, "Owner": o.text("owner"), "Record": r,
	})
}

// Familiar returns an image's full name as docker shows it: docker.io/library/redis:7 is redis:7.
func Familiar(name string) string {
	rest, ok := strings.CutPrefix(name, "docker.io/")
	if !ok {
		return name
	}
	if dir, base := path.Split(rest); dir == "library/" {
		return base
	}
	return rest
}
