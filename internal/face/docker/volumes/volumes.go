// Package volumes is the part of Docker's API that lists, makes and removes volumes. They are the named directories of Docker's
// owner, all of the driver local.
//
// Start at Server.
package volumes

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
)

// Server answers the requests about volumes. All fields are required.
type Server struct {
	// Engine is the engine as the owner of Docker's containers sees it.
	Engine *engine.Client
	// Size returns the disk usage of a directory.
	Size func(ctx context.Context, dir string) (uint64, error)
	// Publish sends an event to clients.
	Publish func(typ, action, id string, attributes map[string]string)

	pruning atomic.Bool
}

// Routes adds the routes.
func (s *Server) Routes(m *dockerhttp.Mux) {
	m.Handle("GET", "/volumes", s.list)
	m.Handle("GET", "/volumes/{name...}", s.inspect)
	m.Handle("POST", "/volumes/create", s.create)
	m.HandleSince("1.25", "POST", "/volumes/prune", s.prune)
	m.Handle("PUT", "/volumes/{name...}", update)
	m.Handle("DELETE", "/volumes/{name...}", s.remove)
}

// Driver is the driver of all volumes.
const Driver = "local"

// AnonymousLabel marks volumes without a name of their own for Docker's clients, as core.AnonymousLabel does for the engine.
const AnonymousLabel = "com.docker.volume.anonymous"

// Anonymous returns the name and the stored labels of a new volume without a name of its own.
func Anonymous(labels map[string]string) (name string, stored map[string]string) {
	var random [32]byte
	_, _ = rand.Read(random[:]) // it never fails
	stored = map[string]string{}
	maps.Copy(stored, labels)
	stored[AnonymousLabel], stored[core.AnonymousLabel] = "", "true"
	return hex.EncodeToString(random[:]), stored
}

// labelsOf returns a volume's labels as clients see them.
func labelsOf(v core.Volume) map[string]string {
	labels := maps.Clone(v.Labels)
	delete(labels, core.AnonymousLabel)
	if v.Anonymous() {
		labels[AnonymousLabel] = ""
	}
	if len(labels) == 0 {
		return nil
	}
	return labels
}

func document(v core.Volume) *dockertypes.Volume {
	doc := &dockertypes.Volume{Driver: Driver, Labels: labelsOf(v), Mountpoint: v.Path, Name: v.Name, Scope: "local"}
	if !v.Created.IsZero() {
		doc.CreatedAt = v.Created.UTC().Format(time.RFC3339)
	}
	if len(v.Options) > 0 {
		doc.Options = v.Options
	}
	return doc
}

// Documents returns all volumes as clients see them.
func (s *Server) Documents(ctx context.Context) ([]*dockertypes.Volume, error) {
	found, err := s.Engine.Volumes.List(ctx)
	docs := make([]*dockertypes.Volume, 0, len(found))
	for _, v := range found {
		docs = append(docs, document(v))
	}
	return docs, err
}

// users returns the containers of each volume.
func (s *Server) users() (map[string][]string, error) {
	containers, err := s.Engine.Stored.Containers()
	if err != nil {
		return nil, err
	}
	users := map[string][]string{}
	for _, c := range containers {
		for _, v := range c.Config.Volumes {
			if !slices.Contains(users[v.Name], string(c.ID)) {
				users[v.Name] = append(users[v.Name], string(c.ID))
			}
		}
	}
	return users, nil
}

// find finds a volume.
func (s *Server) find(ctx context.Context, name string) (core.Volume, error) {
	found, err := s.Engine.Volumes.List(ctx)
	if err != nil {
		return core.Volume{}, err
	}
	i := slices.IndexFunc(found, func(v core.Volume) bool { return v.Name == name })
	if i < 0 {
		return core.Volume{}, errdefs.ErrNotFound.WithMessage("get " + name + ": no such volume")
	}
	return found[i], nil
}

// list answers GET /volumes.
func (s *Server) list(w http.ResponseWriter, r *dockerhttp.Request) error {
	f, err := r.Filters("dangling", "driver", "label", "name")
	if err != nil {
		return err
	}
	dangling, byUse, err := f.Bool("dangling")
	if err != nil {
		return err
	}
	found, err := s.Engine.Volumes.List(r.Context())
	if err != nil {
		return err
	}
	users, err := s.users()
	if err != nil {
		return err
	}
	answer := struct {
		Volumes  []*dockertypes.Volume
		Warnings []string
	}{Volumes: []*dockertypes.Volume{}}
	for _, v := range found {
		if v.Damaged != "" {
			answer.Warnings = append(answer.Warnings, "volume "+v.Name+": "+v.Damaged)
		}
		if !f.Exact("driver", Driver) || !f.Match("name", v.Name) || !f.All("label", labelsOf(v)) || byUse && (len(users[v.Name]) == 0) != dangling {
			continue
		}
		answer.Volumes = append(answer.Volumes, document(v))
	}
	return dockerhttp.Reply(w, http.StatusOK, answer)
}

// inspect answers GET /volumes/{name}.
func (s *Server) inspect(w http.ResponseWriter, r *dockerhttp.Request) error {
	v, err := s.find(r.Context(), r.Vars["name"])
	if err != nil {
		return err
	}
	return dockerhttp.Reply(w, http.StatusOK, document(v))
}

// create answers POST /volumes/create. As dockerd, it answers with an existing volume of that name, also if it has other options.
func (s *Server) create(w http.ResponseWriter, r *dockerhttp.Request) error {
	var req struct {
		Name, Driver       string
		DriverOpts, Labels map[string]string
		ClusterVolumeSpec  *struct{}
	}
	if err := r.Decode(&req); err != nil {
		return err
	}
	cfg := core.VolumeConfig{Name: req.Name, Labels: maps.Clone(req.Labels), Options: req.DriverOpts}
	switch {
	case req.ClusterVolumeSpec != nil && !r.API.Before("1.42"):
		return errdefs.ErrUnavailable.WithMessage("cluster volumes need a swarm manager, and this node is none")
	case req.Driver != "" && req.Driver != Driver:
		return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("error looking up volume plugin %s: plugin %q not found", req.Driver, req.Driver))
	case req.Name == "":
		cfg.Name, cfg.Labels = Anonymous(cfg.Labels)
	case len(req.Name) == 1:
		return invalid.Plainf("create %s: volume name is too short, names should be at least two alphanumeric characters", req.Name)
	case !core.IsName(req.Name, "_.-", maxName):
		return invalid.Plainf("create %.80s: %.80q includes invalid characters for a local volume name, only \"[a-zA-Z0-9][a-zA-Z0-9_.-]\" are allowed. "+
			"If you intended to pass a host directory, use absolute path", req.Name, req.Name)
	default:
		delete(cfg.Labels, core.AnonymousLabel)
	}
	for key := range cfg.Options {
		if key != "type" && key != "device" && key != "o" {
			return invalid.Plainf("create %.80s: invalid option: %q", cfg.Name, key)
		}
	}
	v, err := s.Engine.Volumes.Create(r.Context(), cfg)
	switch {
	case err == nil:
		s.event("create", v.Name)
	case errdefs.IsAlreadyExists(err), errdefs.IsFailedPrecondition(err):
		if v, err = s.find(r.Context(), cfg.Name); err != nil {
			return err
		}
	default:
		return err
	}
	return dockerhttp.Reply(w, http.StatusCreated, document(v))
}

// maxName is the length of the longest name of a volume.
const maxName = 255

func (s *Server) event(action, name string) {
	s.Publish("volume", action, name, map[string]string{"driver": Driver})
}

// update answers PUT /volumes/{name}, which changes volumes of a Swarm only.
func update(http.ResponseWriter, *dockerhttp.Request) error {
	return errdefs.ErrUnavailable.WithMessage("volume update only valid for cluster volumes, but swarm is unavailable")
}

// remove answers DELETE /volumes/{name}.
func (s *Server) remove(w http.ResponseWriter, r *dockerhttp.Request) error {
	name := r.Vars["name"]
	if _, err := s.find(r.Context(), name); err != nil {
		if errdefs.IsNotFound(err) && r.Bool("force") {
			return dockerhttp.Reply(w, http.StatusNoContent, nil)
		}
		return err
	}
	if err := s.Engine.Volumes.Remove(r.Context(), name); err != nil {
		if !errdefs.IsFailedPrecondition(err) {
			return err
		}
		users, err := s.users()
		if err != nil {
			return err
		}
		slices.Sort(users[name])
		return errdefs.ErrFailedPrecondition.WithMessage("remove " + name + ": volume is in use - [" + strings.Join(users[name], ", ") + "]")
	}
	s.event("destroy", name)
	return dockerhttp.Reply(w, http.StatusNoContent, nil)
}

// prune answers POST /volumes/prune. Before 1.42, or with the filter all, it removes all unused volumes, else only anonymous ones.
// Volumes with options stay, because their content is on another disk.
func (s *Server) prune(w http.ResponseWriter, r *dockerhttp.Request) error {
	f, err := r.Filters("label", "label!", "all")
	if err != nil {
		return err
	}
	all := r.API.Before("1.42")
	switch values := f.Values("all"); {
	case all || len(values) == 0:
	case len(values) > 1:
		return invalid.Plainf("invalid filter 'all=%.80q': only one value is expected", values)
	default:
		if all, err = strconv.ParseBool(values[0]); err != nil {
			return invalid.Plainf("invalid filter 'all': %w", err)
		}
	}
	if !s.pruning.CompareAndSwap(false, true) {
		return errdefs.ErrFailedPrecondition.WithMessage("a prune operation is already running")
	}
	defer s.pruning.Store(false)
	answer := struct {
		VolumesDeleted []string
		SpaceReclaimed uint64
	}{VolumesDeleted: []string{}}
	sizes := map[string]uint64{}
	gone, err := s.Engine.Volumes.Prune(r.Context(), func(v core.Volume) bool {
		labels := labelsOf(v)
		_, anonymous := labels[AnonymousLabel]
		if !all && !anonymous || len(v.Options) > 0 || !f.Labels(labels) || r.Context().Err() != nil {
			return false
		}
		if n, err := s.Size(r.Context(), v.Path); err == nil { // the removal matters, its size does not
			sizes[v.Name] = n
		}
		return true
	})
	for _, v := range gone {
		s.event("destroy", v.Name)
		answer.VolumesDeleted = append(answer.VolumesDeleted, v.Name)
		answer.SpaceReclaimed += sizes[v.Name]
	}
	if err != nil {
		return err
	}
	s.Publish("volume", "prune", "", map[string]string{"reclaimed": strconv.FormatUint(answer.SpaceReclaimed, 10)})
	return dockerhttp.Reply(w, http.StatusOK, answer)
}
