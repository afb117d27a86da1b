// Package derive makes the config of an image out of another one's: with one more layer, and with
// the changes of a Dockerfile's instructions.
//
// It works on the JSON itself, so that members that nobody here knows stay. It reads no file and
// knows no store. Start at Config.
package derive

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Layer is the additional layer of a new image.
type Layer struct {
	DiffID    digest.Digest
	Created   time.Time
	CreatedBy string
	Author    string
	Comment   string
}

type object map[string]json.RawMessage

// Config returns the config of the new image. change may change the member config, which is nil for an
// image without one.
func Config(base []byte, l Layer, change func(Settings) error) ([]byte, error) {
	top := object{}
	if err := json.Unmarshal(base, &top); err != nil {
		return nil, fmt.Errorf("read the image's config: %w: %w", errdefs.ErrDataLoss, err)
	}
	if top == nil {
		return nil, fmt.Errorf("read the image's config: it is null: %w", errdefs.ErrDataLoss)
	}
	var rootfs ocispec.RootFS
	var history []json.RawMessage
	settings := Settings{}
	for name, to := range map[string]any{"rootfs": &rootfs, "history": &history, "config": (*object)(&settings)} {
		if raw, ok := top[name]; ok {
			if err := json.Unmarshal(raw, to); err != nil {
				return nil, fmt.Errorf("read the image's config: %s: %w: %w", name, errdefs.ErrDataLoss, err)
			}
		}
	}
	if settings == nil { // the member was null
		settings = Settings{}
	}
	if err := change(settings); err != nil {
		return nil, err
	}
	for range len(rootfs.DiffIDs) - described(history) { // or the new entry would be taken for that of a layer below
		history = append(history, json.RawMessage(`{"comment":"no history"}`))
	}
	rootfs.Type, rootfs.DiffIDs = "layers", append(rootfs.DiffIDs, l.DiffID)
	entry, err := json.Marshal(ocispec.History{Created: &l.Created, CreatedBy: l.CreatedBy, Author: l.Author, Comment: l.Comment})
	if err != nil {
		return nil, err
	}
	// A builder's facts about a container or another image are not true of this one.
	for _, name := range []string{"container", "container_config", "parent", "id", "Size"} {
		delete(top, name)
	}
	if l.Author != "" {
		top.set("author", l.Author)
	}
	top.set("created", l.Created)
	top.set("rootfs", rootfs)
	top.set("history", append(history, entry))
	top.set("config", settings)
	return json.Marshal(top)
}

// described returns how many layers a history has entries for.
func described(history []json.RawMessage) (n int) {
	for _, raw := range history {
		var h ocispec.History
		if json.Unmarshal(raw, &h) == nil && !h.EmptyLayer {
			n++
		}
	}
	return n
}

// set sets a member to a value that JSON can always have.
func (o object) set(name string, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("derive: member %s: %v", name, err))
	}
	o[name] = raw
}

// Settings is the member config of an image's config.
type Settings object

// Set sets a member, or removes it when v is nil.
func (s Settings) Set(name string, v any) {
	if v == nil {
		delete(s, name)
		return
	}
	object(s).set(name, v)
}

// list and table read members; a member of another form counts as absent.
func (s Settings) list(name string) (list []string) {
	if json.Unmarshal(s[name], &list) != nil {
		return nil
	}
	return list
}

func table[T any](s Settings, name string) map[string]T {
	m := map[string]T{}
	if json.Unmarshal(s[name], &m) != nil || m == nil {
		return map[string]T{}
	}
	return m
}

func (s Settings) text(name string) (t string) {
	_ = json.Unmarshal(s[name], &t) // "" on an error
	return t
}

// Env sets variables, NAME=value each.
func (s Settings) Env(pairs []string) {
	if env := merged(s.list("Env"), pairs); len(env) > 0 {
		s.Set("Env", env)
	}
}

// Labels sets labels.
func (s Settings) Labels(labels map[string]string) {
	if len(labels) == 0 {
		return
	}
	all := table[string](s, "Labels")
	for k, v := range labels {
		all[k] = v
	}
	s.Set("Labels", all)
}
