package images

import (
	"io"
	"net/http"
	"strings"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/invalid"
)

// maxLogin bounds the body of a login.
const maxLogin = 64 << 10

// login answers POST /auth: it asks the registry whether it takes the credentials, and stores nothing.
func (s *Server) login(w http.ResponseWriter, r *dockerhttp.Request) error {
	data, err := io.ReadAll(io.LimitReader(r.Body, maxLogin+1))
	if err != nil {
		return invalid.Plainf("read the request's body: %w", err)
	}
	if len(data) > maxLogin {
		return invalid.Plainf("the credentials have more than %d bytes", maxLogin)
	}
	var c dockerhttp.Credentials
	if err := dockerhttp.DecodeJSON(data, &c); err != nil {
		return err
	}
	opts := core.PushOptions{Username: c.Username, Password: c.Password, Token: c.IdentityToken}
	if err := s.Transfers.Login(r.Context(), registryHost(c.ServerAddress), opts); err != nil {
		return transferFault(err)
	}
	return dockerhttp.Reply(w, http.StatusOK, dockertypes.AuthAnswer{Status: "Login Succeeded"})
}

// registryHost returns the host of a server address, which may be a URL. Docker Hub has several.
func registryHost(address string) string {
	_, rest, isURL := strings.Cut(address, "://")
	if !isURL {
		rest = address
	}
	host, _, _ := strings.Cut(rest, "/")
	switch host {
	case "", "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	}
	return host
}

// pruneBuilds answers POST /build/prune, which docker system prune calls. The node has no builder, and so no cache.
func pruneBuilds(w http.ResponseWriter, _ *dockerhttp.Request) error {
	return dockerhttp.Reply(w, http.StatusOK, dockertypes.BuildCachePruned{})
}

// cancelBuild answers POST /build/cancel: no build runs, and dockerd cancels an unknown one without an error.
func cancelBuild(w http.ResponseWriter, r *dockerhttp.Request) error {
	if r.Get("id") == "" {
		return invalid.Plainf("build ID not provided")
	}
	return dockerhttp.Reply(w, http.StatusOK, nil)
}
