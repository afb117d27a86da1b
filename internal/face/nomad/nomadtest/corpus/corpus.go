// Package corpus builds tasks from the shapes of public jobs for Nomad's docker driver, and predicts the
// container that this driver makes for each of them.
//
// It does not know our driver. Start reading at Shapes.
package corpus

import (
	_ "embed"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

//go:embed shapes.txt
var shapes string

// Shape is one combination of keys.
type Shape struct {
	Line  string
	Group string            // the group's network: none, host, bridge, cni, or task for one of the task's own resources
	User  bool              // the task names a user
	Keys  map[string]string // a kind of value, by key
}

// Shapes returns all shapes.
func Shapes() []Shape {
	var list []Shape
	for line := range strings.Lines(shapes) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			list = append(list, parse(line))
		}
	}
	return list
}

func parse(line string) Shape {
	s := Shape{Line: line, Keys: map[string]string{}}
	for word := range strings.FieldsSeq(line) {
		key, kind, _ := strings.Cut(word, "=")
		switch key {
		case "group":
			s.Group = kind
		case "user":
			s.User = true
		default:
			s.Keys[key] = kind
		}
	}
	return s
}

// Place is where a shape's task runs.
type Place struct {
	Image   string // the name of the image without a tag; it has the program stay in /bin, and runs it
	Tag     string // a tag of it that is not latest
	Host    string // a directory of the node that has the directories a and b
	TaskDir string // the task's directory, which has the files of Files
	Addr    string // a free address of the driver's bridge
}

// Files returns the files that the job's templates make in the task's directory. Docker's driver does not
// make a missing source of a block mount.
func Files() []string { return []string{"local/m/f", "configs/f"} }

// Label is the one port of the group, and Port its port in the task.
const (
	Label = "http"
	Port  = 8080
)

// stay is the program of the image that runs until it is stopped.
const stay = "stay"

// Entrypoint is the program of the image.
func Entrypoint() []string { return []string{stay} }

// Command are the arguments of the image.
func Command() []string { return []string{"-d"} }

// Config is the block config.
func (s Shape) Config(p Place) map[string]any {
	c := map[string]any{}
	for key, kind := range s.Keys {
		switch key {
		case "image":
			c[key] = image(kind, p)
		case "ipv4_address":
			c[key] = p.Addr
		default:
			c[key] = s.value(key, kind, p)
		}
	}
	return c
}

func image(kind string, p Place) string {
	switch kind {
	case "latest":
		return p.Image + ":latest"
	case "untagged":
		return p.Image
	case "url":
		return "https://" + p.Image + ":" + p.Tag
	}
	return p.Image + ":" + p.Tag
}

// values maps a key, or a key with one of its kinds, to its value.
var values = map[string]any{
	"args=empty": []any{}, "args=some": []any{"-x"}, "command=name": stay, "command=path": "/bin/" + stay, "entrypoint=list": []any{"/bin/" + stay}, "entrypoint=empty": []any{},
	"auth=password+username": map[string]any{"username": "someone", "password": "secret"}, "image_pull_timeout": "2m", "work_dir": "/tmp", "hostname": "box",
	"ports=some": []any{Label}, "ports=empty": []any{}, "port_map": map[string]any{Label: fmt.Sprint(Port)}, "network_mode=named": "weave", "mac_address": "02:00:00:00:00:01",
	"dns_servers": []any{"192.0.2.53"}, "dns_search_domains": []any{"corp.example"}, "dns_options": []any{"ndots:2"},
	"extra_hosts=address": []any{"db:192.0.2.7"}, "extra_hosts=gateway": []any{"node:host-gateway"}, "network_aliases": []any{"alias"},
	"devices": []any{map[string]any{"host_path": "/dev/null", "container_path": "/dev/void"}}, "shm_size": 1 << 20, "pids_limit": 50, "memory_hard_limit": 128, "cpu_cfs_period": 50000, "cpuset_cpus": "0",
	"labels": map[string]any{"team": "blue"}, "healthchecks": map[string]any{"disable": true}, "oom_score_adj": 100, "container_exists_attempts": 3, "group_add": []any{"44"},
	"sysctl": map[string]any{"net.core.somaxconn": "128"}, "storage_opt": map[string]any{"size": "1G"}, "tmpfs": []any{"/scratch"}, "load": "image.tar", "isolation": "process",
	"logging=journald/tag": map[string]any{"type": "journald", "config": map[string]any{"tag": "x"}}, "logging=fluentd/fluentd-address": map[string]any{"type": "fluentd", "config": map[string]any{"fluentd-address": "192.0.2.9:24224"}},
}

func (s Shape) value(key, kind string, p Place) any {
	if v, ok := values[key+"="+kind]; ok {
		return v
	}
	if v, ok := values[key]; ok {
		return v
	}
	switch key {
	case "volumes":
		var list []any
		for _, v := range volumes(kind, p) {
			list = append(list, v.text)
		}
		return list
	case "mount":
		var list []any
		for _, m := range mounts(kind, p) {
			list = append(list, m.block)
		}
		return list
	case "cap_add", "cap_drop", "security_opt":
		var list []any
		for one := range strings.SplitSeq(kind, "|") {
			list = append(list, one)
		}
		return list
	case "ulimit":
		all := map[string]any{}
		for name := range strings.SplitSeq(kind, "+") {
			all[name] = limit(name)
		}
		return all
	}
	if kind == "true" || kind == "false" {
		return kind == "true"
	}
	return kind
}

// limit is a value of ulimit.
func limit(name string) string {
	if name == "nofile" || name == "nproc" {
		return "1024:2048"
	}
	return "4194304:8388608" // bytes
}

// source returns a source as the job writes it, and its path on the node.
func source(kind, name string, p Place) (text, host string) {
	switch kind {
	case "relative":
		return "local/" + name, p.TaskDir + "/local/" + name
	case "plain":
		return "configs", p.TaskDir + "/configs"
	case "parent":
		return "../alloc/data", path.Join(path.Dir(p.TaskDir), "alloc/data")
	case "socket":
		return p.Host + "/docker.sock", p.Host + "/docker.sock"
	}
	return p.Host + "/" + name, p.Host + "/" + name
}

type volume struct {
	text string
	Mount
}

// volumes returns the mounts of the key volumes.
func volumes(kinds string, p Place) (list []volume) {
	for i, kind := range strings.Split(kinds, "|") {
		where, option, _ := strings.Cut(kind, ":")
		v := volume{Mount: Mount{Type: "bind", Target: fmt.Sprintf("/v%d", i), ReadOnly: option == "ro"}}
		if where == "anonymous" {
			v.text, v.Type = v.Target, "volume"
		} else {
			v.text, v.Source = source(where, "v", p)
			v.text += ":" + v.Target
		}
		if option != "" {
			v.text += ":" + option
		}
		list = append(list, v)
	}
	return list
}

type block struct {
	block map[string]any
	Mount
}

// mounts returns the mounts of the blocks mount.
func mounts(kinds string, p Place) (list []block) {
	for i, kind := range strings.Split(kinds, "|") {
		words := strings.Split(kind, "/")
		m := block{Mount: Mount{Type: words[0], Target: fmt.Sprintf("/m%d", i)}}
		m.block = map[string]any{"type": m.Type, "target": m.Target}
		if m.Type == "untyped" {
			m.Type = "volume"
			delete(m.block, "type")
		}
		for _, word := range words[1:] {
			m.option(word, p)
		}
		list = append(list, m)
	}
	return list
}

func (m *block) option(word string, p Place) {
	key, value, _ := strings.Cut(word, ":")
	within := func(name string) map[string]any {
		if m.block[name] == nil {
			m.block[name] = map[string]any{}
		}
		return m.block[name].(map[string]any)
	}
	switch key {
	case "source":
		if m.Type == "volume" {
			m.block[key], m.Source = "corpus", "corpus"
		} else {
			m.block[key], m.Source = source(value, "m", p)
		}
	case "readonly":
		m.block[key], m.ReadOnly = value == "true", value == "true"
	case "propagation":
		within("bind_options")[key], m.Propagation = value, value
	case "tmpfs_size":
		within("tmpfs_options")["size"] = 1 << 20
	case "tmpfs_mode":
		within("tmpfs_options")["mode"] = 0o700
	case "no_copy":
		within("volume_options")[key] = true
	case "volume_labels":
		within("volume_options")["labels"] = map[string]any{"team": "blue"}
	case "volume_driver":
		within("volume_options")["driver_config"] = map[string]any{"name": value}
	}
}

// HCL writes the block config as a job has it.
func (s Shape) HCL(p Place) string {
	c := s.Config(p)
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(c)) {
		write(&b, key, c[key])
	}
	return b.String()
}

func write(b *strings.Builder, key string, v any) {
	switch x := v.(type) {
	case map[string]any:
		if key == "sysctl" { // its keys have dots, which only an attribute has
			key += " ="
		}
		fmt.Fprintf(b, "%s {\n", key)
		for _, k := range slices.Sorted(maps.Keys(x)) {
			name := k
			if strings.Contains(k, ".") {
				name = `"` + k + `"`
			}
			write(b, name, x[k])
		}
		b.WriteString("}\n")
	case []any:
		if len(x) > 0 {
			if _, ok := x[0].(map[string]any); ok {
				for _, e := range x {
					write(b, key, e)
				}
				return
			}
		}
		var words []string
		for _, e := range x {
			words = append(words, fmt.Sprintf("%q", e))
		}
		fmt.Fprintf(b, "%s = [%s]\n", key, strings.Join(words, ", "))
	case string:
		fmt.Fprintf(b, "%s = %q\n", key, x)
	default:
		fmt.Fprintf(b, "%s = %v\n", key, x)
	}
}
