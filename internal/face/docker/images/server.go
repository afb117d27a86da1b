// Package images serves the image operations of Docker's Engine API: lists and documents, pull, push, load, save, import, tags,
// removal, and logins to registries. It builds nothing, and says so.
//
// Images are shown as dockerd's store with graph drivers shows them: an image's ID is the digest of its config. Start at
// Server.Routes.
package images

import (
	"context"
	"net/http"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/engine"
)

// User is a container that uses an image.
type User struct {
	ID      string // as clients see it
	Image   digest.Digest
	Running bool
}

// Server serves images. Engine, Transfers and Owner are required.
type Server struct {
	Engine    *engine.Client
	Transfers core.ImageTransfers
	Owner     core.Owner
	// Users returns the containers of the owner, one for each image that they use. nil asks Engine.
	Users func(ctx context.Context) ([]User, error)
	// Publish sends an event to the clients that follow events. nil sends none.
	Publish func(typ, action, id string, attributes map[string]string)
	// DefaultRegistry completes short names, as the store does; "" is docker.io.
	DefaultRegistry string
	// Driver is the name of the storage driver in documents.
	Driver string
	// HidesEnv reports whether the answer to a request must not have environments. nil never hides them.
	HidesEnv func(ctx context.Context) bool
}

func (s *Server) hidesEnv(ctx context.Context) bool { return s.HidesEnv != nil && s.HidesEnv(ctx) }

// Routes adds the handlers.
func (s *Server) Routes(m *dockerhttp.Mux) {
	m.Handle("GET", "/images/json", s.list)
	m.Handle("GET", "/images/{name...}/json", s.inspect)
	m.Handle("GET", "/images/{name...}/history", s.history)
	m.Handle("POST", "/images/create", s.create)
	m.Handle("POST", "/images/{name...}/push", s.push)
	m.Handle("POST", "/images/{name...}/tag", s.tag)
	m.Handle("DELETE", "/images/{name...}", s.remove)
	m.HandleSince("1.25", "POST", "/images/prune", s.prune)
	m.Handle("GET", "/images/get", s.saveNamed)
	m.Handle("GET", "/images/{name...}/get", s.saveOne)
	m.Handle("POST", "/images/load", s.load)
	m.HandleSince("1.30", "GET", "/distribution/{name...}/json", s.distribution)
	m.Handle("POST", "/auth", s.login)
	m.HandleSince("1.31", "POST", "/build/prune", pruneBuilds)
	m.Handle("POST", "/build/cancel", cancelBuild)
	for _, path := range []string{"/build", "/session", "/grpc"} {
		m.Handle("POST", path, refuse("this node builds no images: use docker buildx create --driver docker-container --use, and build with --load"))
	}
	m.Handle("GET", "/images/search", refuse("this node searches no registry: the registry's web site lists its images"))
	m.Handle("GET", "/images/{name...}/attestations", refuse("this node keeps one manifest of each image, and no attestations"))
}

// publish sends an event of an image, with its labels and name.
func (s *Server) publish(action, id, name string, labels map[string]string) {
	if s.Publish == nil {
		return
	}
	attributes := map[string]string{}
	for k, v := range labels {
		attributes[k] = v
	}
	if name != "" {
		attributes["name"] = name
	}
	s.Publish("image", action, id, attributes)
}

// users returns the containers of the owner, one for each image that they use.
func (s *Server) users(ctx context.Context) ([]User, error) {
	if s.Users != nil {
		return s.Users(ctx)
	}
	list, err := s.Engine.Containers(ctx, core.Filter{})
	if err != nil {
		return nil, err
	}
	var users []User
	for _, c := range list {
		running := c.State.Live() || c.Restarting()
		for _, id := range imagesOf(c) {
			users = append(users, User{string(c.ID), id, running})
		}
	}
	return users, nil
}

// imagesOf returns the images of a container: that of its root, and those that are mounted in it.
func imagesOf(c core.Container) (list []digest.Digest) {
	if c.Image != "" {
		list = append(list, c.Image)
	}
	for _, m := range c.Config.Images {
		list = append(list, m.Image)
	}
	return list
}

// refuse returns a handler that answers 501 with a text.
func refuse(text string) dockerhttp.Handler {
	return func(http.ResponseWriter, *dockerhttp.Request) error {
		return errdefs.ErrNotImplemented.WithMessage(text)
	}
}
