package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/longshore/longshore/internal/agent/guestprogram"
	"github.com/longshore/longshore/internal/control"
	noimages "github.com/longshore/longshore/internal/engine/without"
	"github.com/longshore/longshore/internal/image"
)

// Guest runs the agent of a virtual machine's guest as longshore-guest does, with an image store and the control API.
// Its arguments begin with the program's name; it returns the program's status.
func Guest(args []string, version string) int {
	return guestprogram.Main(args, guestprogram.Build{Version: version, Keeper: keeperBeside, Images: guestImages, Control: serveGuest})
}

func keeperBeside() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), "longshore-keeper")
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("longshore-keeper must be beside %s: %w", self, err)
	}
	return path, nil
}

func guestImages(dir, version string, log *slog.Logger) (guestprogram.Images, error) {
	return image.New(image.Options{Root: dir, Logger: log, UserAgent: "longshore/" + version})
}

func serveGuest(ctx context.Context, c guestprogram.Control) error {
	srv, err := control.New(control.Options{
		Engine: c.Engine, LogDir: c.Dir, Logger: c.Logger.With("face", "control"), Version: c.Version, Started: time.Now(), Recent: c.Recent, Restricted: c.Restricted,
		Transfers: noimages.Images{},
	})
	if err != nil {
		return errors.Join(err, c.Listener.Close())
	}
	return srv.Serve(ctx, control.Listeners{Control: c.Listener})
}
