package pull

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/subprocess"
)

// helperPrefix begins the name of every program that keeps credentials for docker's
// clients.
const helperPrefix = "docker-credential-"

// HelperName returns the name in the plugin's configuration for the program at a path; false if it
// has none.
func HelperName(program string) (string, bool) {
	name, ok := strings.CutPrefix(path.Base(program), helperPrefix)
	return name, ok && name != "" && path.IsAbs(program)
}

// The limits of a helper.
const (
	helperTime    = 20 * time.Second
	helperOutput  = 64 << 10 // bytes of each output
	helpersAtOnce = 4
)

// helpers runs the programs that the agent's configuration permits.
type helpers struct {
	paths map[string]string // by name
	slots chan struct{}     // one for each that runs
	log   *slog.Logger      // gets their messages, which are not for jobs
}

func newHelpers(programs []string, log *slog.Logger) helpers {
	h := helpers{paths: map[string]string{}, log: log, slots: make(chan struct{}, helpersAtOnce)}
	for _, p := range programs {
		if name, ok := HelperName(p); ok {
			h.paths[name] = p
		}
	}
	return h
}

// credentials are those of one registry; the zero credentials are none.
type credentials struct{ username, password, token string }

// ask runs a helper for a registry's credentials. A job chooses only the registry, by an image's
// name.
func (h helpers) ask(ctx context.Context, name, registry string) (credentials, error) {
	program, ok := h.paths[name]
	if !ok {
		known := strings.Join(slices.Sorted(maps.Keys(h.paths)), ", ")
		return credentials{}, fmt.Errorf("auth.helper %q of the plugin is not in face.nomad.credential_helpers of the agent, which has [%s]: %w", name, known, errdefs.ErrPermissionDenied)
	}
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	case <-ctx.Done():
		return credentials{}, context.Cause(ctx)
	}
	server := registry
	if registry == dockerHub {
		server = "https://index.docker.io/v1/" // as docker's clients keep it
	}
	ctx, cancel := context.WithTimeoutCause(ctx, helperTime, fmt.Errorf("it took longer than %s", helperTime))
	defer cancel()
	cmd := subprocess.Command(ctx, program, "get")
	cmd.Dir, cmd.Stdin = "/", strings.NewReader(server)
	stdout, stderr := &subprocess.Head{Max: helperOutput}, &subprocess.Head{Max: helperOutput}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err := subprocess.Run(ctx, cmd)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.As(err, &exit) && strings.Contains(stdout.String(), "credentials not found"):
		return credentials{}, nil // helpers report it like this
	case errors.As(err, &exit):
		h.log.WarnContext(ctx, "a credential helper has failed", "program", program, "registry", registry, "error", err, "stderr", stderr.String())
	}
	if err != nil {
		return credentials{}, fmt.Errorf("%s for %s: %w: %w", path.Base(program), registry, err, errdefs.ErrUnavailable)
	}
	var answer struct{ Username, Secret string }
	if err := json.Unmarshal(stdout.Bytes(), &answer); err != nil || answer.Secret == "" {
		return credentials{}, fmt.Errorf("%s for %s: its answer has no credentials: %w", path.Base(program), registry, errdefs.ErrUnavailable)
	}
	if answer.Username == "<token>" {
		return credentials{token: answer.Secret}, nil
	}
	return credentials{username: answer.Username, password: answer.Secret}, nil
}
