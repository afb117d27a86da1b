package runflags

import (
	"encoding/csv"
	"errors"
	"fmt"
	"strconv"
	"strings"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/typed"
)

// addMount parses TYPE, SOURCE, TARGET and options of a --mount.
func addMount(r *longshorev1.CreateRequest, s string) error {
	fields, err := csv.NewReader(strings.NewReader(s)).Read()
	if err != nil {
		return err
	}
	kind, m, t, img := "volume", &longshorev1.Mount{ByMount: true}, &longshorev1.Tmpfs{}, &longshorev1.ImageMount{}
	var ofKind []string // the options that one type has
	for _, f := range fields {
		name, value, has := strings.Cut(f, "=")
		on := !has || value == "true" || value == "1"
		switch strings.ToLower(name) {
		case "type":
			kind = value
		case "source", "src":
			m.Source, img.Image = value, value
		case "target", "destination", "dst":
			m.Target, t.Target, img.Target = value, value, value
		case "readonly", "ro":
			m.ReadOnly = on
		case "bind-propagation":
			m.Propagation = value
		case "volume-nocopy":
			m.NoCopy = on
		case "volume-subpath":
			m.SubPath = value
		case "image-subpath", "subpath":
			img.SubPath, ofKind = value, append(ofKind, "image")
		case "rw", "readwrite":
			if on {
				return errors.New("rw: use type=volume for content that can be changed; binds and volumes are writable without it")
			}
			m.ReadOnly = true
		case "title":
			img.Title, ofKind = value, append(ofKind, "artifact")
		case "digest":
			img.Digest, ofKind = value, append(ofKind, "artifact")
		case "name":
			img.Name, ofKind = value, append(ofKind, "artifact")
		case "tmpfs-size":
			n, err := typed.Bytes(value)
			if err != nil {
				return err
			}
			t.Options = append(t.Options, "size="+strconv.FormatUint(n, 10))
		case "tmpfs-mode":
			t.Options = append(t.Options, "mode="+value)
		case "consistency":
		default:
			return fmt.Errorf("%q is none of type, source, target, readonly, bind-propagation, volume-nocopy, volume-subpath, image-subpath, title, digest, name, tmpfs-size, tmpfs-mode", name)
		}
	}
	if m.GetTarget() == "" {
		return errors.New("a target is needed")
	}
	for _, want := range ofKind {
		if kind != want {
			return fmt.Errorf("image-subpath is an option of type=image, title, digest and name are those of type=artifact, and the type is %s", kind)
		}
	}
	switch kind {
	case "image", "artifact":
		if m.GetSource() == "" {
			return fmt.Errorf("a source is needed, the name of an %s", kind)
		}
		img.Artifact = kind == "artifact"
		r.Images = append(r.Images, img)
		return nil
	case "tmpfs":
		if m.GetSource() != "" {
			return errors.New("a tmpfs has no source")
		}
		if m.GetReadOnly() {
			t.Options = append(t.Options, "ro")
		}
		r.Tmpfs = append(r.Tmpfs, t)
		return nil
	case "bind":
		if !strings.HasPrefix(m.GetSource(), "/") {
			return fmt.Errorf("the source %q is not an absolute path", m.GetSource())
		}
	case "volume":
		if strings.HasPrefix(m.GetSource(), "/") {
			return fmt.Errorf("the source %q is a path: use type=bind", m.GetSource())
		}
		m.Anonymous = m.GetSource() == ""
	default:
		return fmt.Errorf("type %q is none of bind, volume, tmpfs, image, artifact", kind)
	}
	r.Mounts = append(r.Mounts, m)
	return nil
}

// imageMountFields returns the fields of --mount for a mount of an image.
func imageMountFields(m *longshorev1.ImageMount) []string {
	fields := []string{"type=image"}
	if m.GetArtifact() {
		fields[0] = "type=artifact"
	}
	for _, f := range []struct{ name, value string }{
		{"source", m.GetImage()}, {"target", m.GetTarget()}, {"image-subpath", m.GetSubPath()}, {"title", m.GetTitle()}, {"digest", m.GetDigest()}, {"name", m.GetName()},
	} {
		if f.value != "" {
			fields = append(fields, f.name+"="+f.value)
		}
	}
	return fields
}

// mountText returns the text of a --mount with these fields.
func mountText(fields []string) string {
	var text strings.Builder
	w := csv.NewWriter(&text)
	_ = w.Write(fields) // a strings.Builder takes everything
	w.Flush()
	return strings.TrimSuffix(text.String(), "\n")
}
