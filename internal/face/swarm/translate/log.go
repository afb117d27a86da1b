package translate

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/templates"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/logs/driver"
	"github.com/longshore/longshore/internal/ocispec"
)

// The limits of a container's log when its task names none.
const (
	logBytes = 16 << 20
	logFiles = 3
)

// maxLogAttributes is the most bytes of attributes, because each line carries them.
const maxLogAttributes = 8 << 10

// readLog reads the log driver: json-file and local write files, none keeps nothing, and services get the lines of files. The options
// are those of dockerd's drivers. compress, mode and max-buffer-size change nothing: logs here are
// not compressed, and a program never waits for a reader of its log.
func (a *Task) readLog() error {
	name, options := logDriver(a.Swarm)
	a.service = &core.LogDriver{Image: a.spec.GetImage(), Command: strings.Join(slices.Concat(a.spec.GetCommand(), a.spec.GetArgs()), " ")}
	switch name {
	case "none":
		return nil
	case "json-file", "local":
		if ownFiles(a.Swarm) {
			a.service.Name = name
		}
	default:
		return a.readService(name, options)
	}
	a.log = core.Sink{Format: core.FormatCRI, Stdout: true, Stderr: true, MaxBytes: logBytes, MaxFiles: logFiles}
	for _, option := range slices.Sorted(maps.Keys(options)) {
		value := options[option]
		var err error
		switch option {
		case "max-size":
			var n int64
			if n, err = ocispec.Bytes(value); err == nil && n >= 0 {
				a.log.MaxBytes = n
				continue
			}
		case "max-file":
			var n int
			if n, err = strconv.Atoi(value); err == nil && n >= 1 && n <= 1000 {
				a.log.MaxFiles = n
				continue
			}
		case "compress":
			if _, err = strconv.ParseBool(value); err == nil {
				continue
			}
		case "mode":
			if value == "" || value == "blocking" || value == "non-blocking" {
				continue
			}
		case "max-buffer-size":
			if options["mode"] != "non-blocking" {
				return invalid.Errorf("log option max-buffer-size needs mode=non-blocking")
			}
			if _, err = ocispec.Bytes(value); err == nil {
				continue
			}
		case "tag", "labels", "env", "labels-regex", "env-regex":
			if name == "json-file" {
				continue // LogAttributes checks it
			}
			return invalid.Errorf("unknown log option %s of the log driver local", option)
		default:
			return invalid.Errorf("unknown log option %s of the log driver %s", option, name)
		}
		return invalid.Errorf("log option %s %q", option, value)
	}
	_, err := a.LogAttributes(core.Container{})
	return err
}

// readService reads a log driver that sends the lines of the log to a service.
func (a *Task) readService(name string, options map[string]string) (err error) {
	if !driver.Known(name) {
		return notServed("log driver %q", name)
	}
	image, command := a.service.Image, a.service.Command
	if a.service, err = driver.Authored(name, options, a.Labels(), a.spec.GetEnv()); err != nil {
		return err
	}
	a.service.Image, a.service.Command = image, command
	size, files, err := driver.Size(options)
	a.log = core.Sink{Format: core.FormatCRI, Stdout: true, Stderr: true, MaxBytes: cmp.Or(size, logBytes), MaxFiles: int(cmp.Or(files, logFiles))}
	return err
}

// ownFiles reports whether a task names a driver that writes files, so that it does not get the node's default.
func ownFiles(t *swarmv1.Task) bool {
	return t.GetLogDriver().GetName() != "" || t.GetSpec().GetLogDriver().GetName() != ""
}

// logDriver returns the name and the options of a task's log driver. The default is json-file.
func logDriver(t *swarmv1.Task) (string, map[string]string) {
	d := t.GetLogDriver()
	if d == nil {
		d = t.GetSpec().GetLogDriver()
	}
	if d.GetName() == "" {
		return "json-file", d.GetOptions()
	}
	return d.GetName(), d.GetOptions()
}

// LogAttributes returns the attributes of each line of the task's output, sorted by key: labels of the
// service by the log options labels and labels-regex, its variables by env and env-regex, and the tag
// of the container c. InvalidArgument.
func (a *Task) LogAttributes(c core.Container) ([]*swarmv1.LogAttr, error) {
	name, options := logDriver(a.Swarm)
	if name != "json-file" {
		return nil, nil
	}
	found, vars := map[string]string{}, map[string]string{}
	for _, env := range a.spec.GetEnv() {
		if name, value, ok := strings.Cut(env, "="); ok {
			vars[name] = value
		}
	}
	for _, from := range []struct {
		option string
		values map[string]string
	}{{"labels", a.Labels()}, {"env", vars}} {
		if err := pick(found, from.values, from.option, options); err != nil {
			return nil, err
		}
	}
	if text, ok := options["tag"]; ok {
		tag, err := logTag(a, c).Expand(text)
		if err != nil {
			return nil, invalid.Errorf("log option tag: %w", err)
		}
		if found["tag"] = tag; tag == "" {
			delete(found, "tag")
		}
	}
	var list []*swarmv1.LogAttr
	size := 0
	for _, key := range slices.Sorted(maps.Keys(found)) {
		list = append(list, &swarmv1.LogAttr{Key: key, Value: found[key]})
		if size += len(key) + len(found[key]); size > maxLogAttributes {
			return nil, invalid.Errorf("the log options add more than %d bytes to each line", maxLogAttributes)
		}
	}
	return list, nil
}

// pick copies values to found: those with the keys in the list options[option], and those with keys
// that match the regular expression options[option-regex].
func pick(found, values map[string]string, option string, options map[string]string) error {
	for name := range strings.SplitSeq(options[option], ",") {
		if value, ok := values[name]; ok {
			found[name] = value
		}
	}
	text := options[option+"-regex"]
	if text == "" {
		return nil
	}
	match, err := regexp.Compile(text)
	if err != nil {
		return invalid.Errorf("log option %s-regex: %w", option, err)
	}
	for name, value := range values {
		if match.MatchString(name) {
			found[name] = value
		}
	}
	return nil
}

func logTag(a *Task, c core.Container) templates.LogTag {
	short := func(id string) string { return id[:min(len(id), 12)] }
	_, image, _ := strings.Cut(c.Image.String(), ":")
	return templates.LogTag{
		ID: short(string(c.ID)), FullID: string(c.ID), Name: a.Name(),
		ImageID: short(image), ImageFullID: c.Image.String(), ImageName: a.spec.GetImage(),
		DaemonName: "longshore", Hostname: a.Node.Hostname,
		Command:         strings.Join(slices.Concat(a.spec.GetCommand(), a.spec.GetArgs()), " "),
		ContainerLabels: a.Labels(),
	}
}
