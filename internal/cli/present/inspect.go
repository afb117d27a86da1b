package present

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Document returns the document of inspect for an agent's record: the members of docker's and podman's documents, and
// the whole record as Record. For a kind other than container and image the document is the record alone.
func Document(kind string, record []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(record))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("read the agent's record: %w", err)
	}
	r, ok := numbers(v).(map[string]any)
	if !ok {
		return v, nil
	}
	switch kind {
	case "container":
		doc := container(r)
		doc["Record"] = r
		return doc, nil
	case "image":
		doc := image(r)
		doc["Record"] = r
		return doc, nil
	}
	return r, nil
}

// numbers converts numbers to integers, for comparisons in templates.
func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if n, err := strconv.ParseUint(v.String(), 10, 64); err == nil { // such as RLIM_INFINITY
			return n
		}
		f, err := v.Float64()
		if err != nil {
			return v.String()
		}
		return f
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	}
	return v
}

// object is a JSON object, read by paths of members. A missing member is the zero value.
type object map[string]any

func (o object) at(names ...string) any {
	var v any = map[string]any(o)
	for _, n := range names {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[n]
	}
	return v
}

func (o object) text(names ...string) string {
	s, _ := o.at(names...).(string)
	return s
}

func (o object) number(names ...string) int64 {
	n, _ := o.at(names...).(int64)
	return n
}

func (o object) boolean(names ...string) bool {
	b, _ := o.at(names...).(bool)
	return b
}

func (o object) list(names ...string) []any {
	l, _ := o.at(names...).([]any)
	if l == nil {
		l = []any{}
	}
	return l
}

func (o object) object(names ...string) object {
	m, _ := o.at(names...).(map[string]any)
	return m
}

// orEmpty returns m, or an empty object for nil, so that a template need not test for it.
func orEmpty(m any) any {
	if m == nil {
		return map[string]any{}
	}
	return m
}

func container(r map[string]any) map[string]any {
	o := object(r)
	args := o.list("spec", "process", "args")
	if len(args) == 0 {
		args = o.list("main", "args")
	}
	program, rest := "", []any{}
	if len(args) > 0 {
		program, rest = fmt.Sprint(args[0]), args[1:]
	}
	logPath := ""
	if sinks := o.list("config", "io", "sinks"); len(sinks) > 0 {
		if s, ok := sinks[0].(map[string]any); ok {
			logPath = object(s).text("path")
		}
	}
	return map[string]any{
		"Id": o.text("id"), "Created": o.text("created"), "Path": program, "Args": rest, "State": state(o), "Image": o.text("image"),
		"ImageName": o.text("image_name"), "Name": o.text("name"), "Owner": o.text("owner"), "Driver": "overlay", "Platform": "linux",
		"LogPath": logPath, "Pod": o.text("sandbox"), "HostConfig": hostConfig(o), "Mounts": mounts(o), "Config": config(o, args), "NetworkSettings": network(o),
		"OCIRuntime": o.text("runtime"), "HostnamePath": o.text("etc", "hostname"), "RestartCount": int64(0),
	}
}

// neverTime is docker's value of an unset time.
const neverTime = "0001-01-01T00:00:00Z"

func state(o object) map[string]any {
	status := o.text("state")
	exit := o.object("main", "autopsy", "exit")
	code := exit.number("code")
	switch {
	case exit.boolean("lost"):
		code = 255
	case exit.number("signal") != 0:
		code = 128 + exit.number("signal")
	}
	orNever := func(s string) string {
		if s == "" {
			return neverTime
		}
		return s
	}
	return map[string]any{
		"Status": status, "Running": status == "running" || status == "paused", "Paused": status == "paused", "Restarting": false, "Dead": false,
		"OOMKilled": o.boolean("main", "autopsy", "oom", "main"), "Pid": o.number("main", "pid"), "ExitCode": code,
		"Error": o.text("main", "autopsy", "start"), "StartedAt": orNever(o.text("main", "started")), "FinishedAt": orNever(o.text("main", "finished")),
		"Health": o.at("health_status"), "Why": o.text("main", "autopsy", "verdict"), "CgroupPath": o.text("cgroup", "path"),
	}
}

// nanoCPUs returns the CPU quota in docker's unit, billionths of a CPU.
func nanoCPUs(o object) int64 {
	quota, period := o.number("spec", "linux", "resources", "cpu", "quota"), o.number("spec", "linux", "resources", "cpu", "period")
	if quota <= 0 || period <= 0 {
		return 0
	}
	return int64(math.Round(float64(quota) / float64(period) * 1e9))
}

func hostConfig(o object) map[string]any {
	res := o.object("spec", "linux", "resources")
	binds := []any{}
	for _, m := range mounts(o) {
		source := m["Source"]
		if m["Type"] == "volume" {
			source = m["Name"]
		}
		if m["Type"] != "tmpfs" {
			mode := "rw"
			if m["RW"] == false {
				mode = "ro"
			}
			binds = append(binds, fmt.Sprintf("%v:%v:%s", source, m["Destination"], mode))
		}
	}
	bindings := map[string]any{}
	for port, list := range ports(o.list("network", "config_ports")) {
		bindings[port] = list
	}
	ulimits := []any{}
	for _, l := range o.list("spec", "process", "rlimits") {
		if l, ok := l.(map[string]any); ok {
			ulimits = append(ulimits, map[string]any{"Name": l["type"], "Soft": l["soft"], "Hard": l["hard"]})
		}
	}
	return withDevices(o, map[string]any{
		"Memory": res.number("memory", "limit"), "MemorySwap": res.number("memory", "swap"), "MemoryReservation": res.number("memory", "reservation"),
		"NanoCpus": nanoCPUs(o), "CpuShares": res.number("cpu", "shares"), "CpuQuota": res.number("cpu", "quota"), "CpuPeriod": res.number("cpu", "period"),
		"CpusetCpus": res.text("cpu", "cpus"), "CpusetMems": res.text("cpu", "mems"), "PidsLimit": res.number("pids", "limit"),
		"ReadonlyRootfs": o.boolean("spec", "root", "readonly"), "Privileged": o.boolean("privileged"), "Binds": binds, "PortBindings": bindings,
		"NetworkMode": networkMode(o), "RestartPolicy": map[string]any{"Name": "no", "MaximumRetryCount": int64(0)}, "AutoRemove": o.boolean("auto_remove"),
		"Ulimits": ulimits, "OomScoreAdj": o.number("spec", "process", "oomScoreAdj"), "Sysctls": orEmpty(o.at("spec", "linux", "sysctl")),
		"UsernsMode": usernsMode(o), "CgroupParent": path.Dir(o.text("cgroup", "path")), "Runtime": o.text("runtime"), "Init": o.boolean("config", "init"),
		"LogConfig": map[string]any{"Type": "longshore", "Config": map[string]any{}}, "ExtraHosts": orEmpty(o.at("network", "hosts")),
	})
}

// networkMode returns the name of the first network, as in docker's document.
func networkMode(o object) string {
	for _, n := range o.list("network", "names") {
		if name, ok := n.(string); ok {
			return name
		}
	}
	return o.text("network", "mode")
}

// usernsMode returns "private" if the container has a user namespace of its own, otherwise "".
func usernsMode(o object) string {
	if len(o.list("spec", "linux", "uidMappings")) > 0 {
		return "private"
	}
	return ""
}

// mounts returns the mounts of the user's request, without those that every container has.
func mounts(o object) []map[string]any {
	list := []map[string]any{}
	volumes := map[string]string{}
	for _, v := range o.list("config", "volumes") {
		if v, ok := v.(map[string]any); ok {
			volumes[object(v).text("target")] = object(v).text("name")
		}
	}
	for _, entry := range o.list("spec", "mounts") {
		e, ok := entry.(map[string]any)
		if !ok {
			continue
		}
		m := object(e)
		target, kind := m.text("destination"), m.text("type")
		options := m.list("options")
		volume, isVolume := volumes[target]
		switch {
		case isVolume:
			kind = "volume"
		case isStandardMount(target) || slices.Contains([]any{"/etc/resolv.conf", "/etc/hosts", "/etc/hostname"}, any(target)):
			continue
		case slices.Contains(options, any("bind")) || slices.Contains(options, any("rbind")):
			kind = "bind"
		}
		propagation := ""
		for _, p := range []string{"rprivate", "private", "rslave", "slave", "rshared", "shared"} {
			if slices.Contains(options, any(p)) {
				propagation = p
			}
		}
		shown := map[string]any{
			"Type": kind, "Source": m.text("source"), "Destination": target, "RW": !slices.Contains(options, any("ro")), "Propagation": propagation, "Options": options,
		}
		if isVolume {
			shown["Name"], shown["Driver"] = volume, "local"
		}
		list = append(list, shown)
	}
	return list
}

// isStandardMount reports whether target is the target of a mount that every container has.
func isStandardMount(target string) bool {
	for _, own := range []string{"/proc", "/sys", "/dev"} {
		if target == own || strings.HasPrefix(target, own+"/") {
			return true
		}
	}
	return false
}

func config(o object, args []any) map[string]any {
	user := ""
	if uid, gid := o.number("spec", "process", "user", "uid"), o.number("spec", "process", "user", "gid"); uid != 0 || gid != 0 {
		user = strconv.FormatInt(uid, 10) + ":" + strconv.FormatInt(gid, 10)
	}
	exposed := map[string]any{}
	for port := range ports(o.list("network", "ports")) {
		exposed[port] = map[string]any{}
	}
	image := o.text("image_name")
	if image == "" {
		image = o.text("image")
	}
	return map[string]any{
		"Hostname": o.text("network", "hostname"), "Domainname": o.text("network", "domainname"), "User": user, "Env": o.list("spec", "process", "env"), "Cmd": args, "Entrypoint": []any{}, "Image": image,
		"Labels": orEmpty(o.at("labels")), "WorkingDir": o.text("spec", "process", "cwd"), "Tty": o.boolean("config", "io", "tty"),
		"OpenStdin": o.text("config", "io", "stdin") == "open" || o.text("config", "io", "stdin") == "once", "StopSignal": o.text("config", "stop", "signal"),
		"StopTimeout": o.number("config", "stop", "grace") / 1e9, "ExposedPorts": exposed, "Annotations": orEmpty(o.at("spec", "annotations")),
		"Healthcheck": healthcheck(o.at("health_check")),
	}
}

// healthcheck converts a health check to docker's form: a command of the shell becomes CMD-SHELL.
func healthcheck(check any) any {
	c, ok := check.(map[string]any)
	if !ok {
		return check
	}
	if test, ok := c["Test"].([]any); ok && len(test) == 4 && test[0] == "CMD" && test[1] == "/bin/sh" && test[2] == "-c" {
		c = maps.Clone(c)
		c["Test"] = []any{"CMD-SHELL", test[3]}
	}
	return c
}

// ports maps the container's ports, such as 80/tcp, to docker's list of host ports.
func ports(list []any) map[string][]any {
	out := map[string][]any{}
	for _, entry := range list {
		e, ok := entry.(map[string]any)
		if !ok {
			continue
		}
		p := object(e)
		name := strconv.FormatInt(p.number("container"), 10) + "/" + p.text("proto")
		ip := p.text("host_ip")
		if ip == "" {
			ip = AnyAddress
		}
		out[name] = append(out[name], map[string]any{"HostIp": ip, "HostPort": strconv.FormatInt(p.number("host"), 10)})
	}
	return out
}

// AnyAddress stands for every address of the host.
const AnyAddress = "0.0.0.0"

func network(o object) map[string]any {
	first := func(l []any, want6 bool) string {
		for _, a := range l {
			if s, ok := a.(string); ok && strings.Contains(s, ":") == want6 {
				return s
			}
		}
		return ""
	}
	addrs, gateways := o.list("network", "addrs"), o.list("network", "gateways")
	mac := ""
	for _, i := range o.list("network", "interfaces") {
		if i, ok := i.(map[string]any); ok && mac == "" {
			mac = object(i).text("mac")
		}
	}
	shown := map[string]any{}
	for port, list := range ports(o.list("network", "ports")) {
		shown[port] = list
	}
	addresses := map[string]any{
		"IPAddress": first(addrs, false), "GlobalIPv6Address": first(addrs, true), "Gateway": first(gateways, false), "IPv6Gateway": first(gateways, true), "MacAddress": mac,
	}
	networks := map[string]any{}
	if list := o.list("network", "networks"); len(list) > 0 {
		for _, n := range list {
			if n, ok := n.(map[string]any); ok {
				networks[object(n).text("name")] = endpoint(n)
			}
		}
	} else if mode := o.text("network", "mode"); mode != "" {
		name := o.text("network", "name")
		if name == "" {
			name = mode
		}
		networks[name] = addresses
	}
	all := map[string]any{"Ports": shown, "Networks": networks, "SandboxKey": o.text("network", "namespace")}
	for k, v := range addresses {
		all[k] = v
	}
	return all
}

// endpoint returns docker's document for a container's place on a network.
func endpoint(o object) map[string]any {
	d := map[string]any{
		"IPAddress": "", "IPPrefixLen": int64(0), "GlobalIPv6Address": "", "GlobalIPv6PrefixLen": int64(0), "Gateway": "", "IPv6Gateway": "",
		"MacAddress": o.text("mac"), "Aliases": o.list("aliases"), "Interface": o.text("interface"),
	}
	for _, a := range o.list("addrs") {
		s, _ := a.(string)
		p, err := netip.ParsePrefix(s)
		switch {
		case err != nil:
		case p.Addr().Is4():
			d["IPAddress"], d["IPPrefixLen"] = p.Addr().String(), int64(p.Bits())
		default:
			d["GlobalIPv6Address"], d["GlobalIPv6PrefixLen"] = p.Addr().String(), int64(p.Bits())
		}
	}
	for _, g := range o.list("gateways") {
		if s, _ := g.(string); strings.Contains(s, ":") {
			d["IPv6Gateway"] = s
		} else {
			d["Gateway"] = s
		}
	}
	return d
}

// image returns docker's document for an image.
func image(r map[string]any) map[string]any {
	o := object(r)
	return map[string]any{
		"Id": o.text("id"), "RepoTags": o.list("names"), "RepoDigests": o.list("digests"), "Digest": o.text("digest"), "Size": o.number("size_bytes"),
		"VirtualSize": o.number("unpacked_bytes"), "Created": o.text("config", "created"), "Author": o.text("config", "author"), "Architecture": o.text("config", "architecture"),
		"Os": o.text("config", "os"), "Variant": o.text("config", "variant"), "Config": orEmpty(o.at("config", "config")),
		"RootFS": map[string]any{"Type": "layers", "Layers": o.list("config", "rootfs", "diff_ids")}, "History": o.list("config", "history"), "Owner": o.text("owner"),
	}
}
