package agent

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/longshore/longshore/internal/config"
	"github.com/longshore/longshore/internal/dbfile"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/state/bolt"
)

// Repair makes the damaged files of a node sound whose agent does not run. With dry it only says
// what it would do. It tells w about each file.
func Repair(cfg config.Config, log *slog.Logger, w io.Writer, dry bool) error {
	root, run := cfg.Agent.Root, cfg.Agent.State
	if _, err := os.Stat(root); err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	unlock, err := lock(root, run)
	if err != nil {
		return err
	}
	defer unlock()
	reports, err := bolt.Repair(bolt.Options{State: run, Root: root, Logger: log}, dry)
	if err == nil {
		var r dbfile.Report
		r, err = image.Repair(filepath.Join(root, "image"), log, dry)
		reports = append(reports, r)
	}
	for _, r := range reports {
		text := r.Path + ": no damage found\n"
		if r.Damage != "" {
			text = r.Path + ": damaged: " + r.Damage + "\n  " + repairResult(r) + "\n"
		}
		if _, werr := io.WriteString(w, text); werr != nil {
			return werr
		}
	}
	return err
}

func repairResult(r dbfile.Report) string {
	if r.Whole {
		return fmt.Sprintf("all its %d entries are in its copy: nothing is lost", r.Entries)
	}
	lost := fmt.Sprintf("%d entries could be read; lost is what was in the damaged places", r.Entries)
	if r.Dropped > 0 {
		lost += fmt.Sprintf(", and %d entries that make no sense", r.Dropped)
	}
	const shown = 5
	if more := len(r.Places) - shown; more > 0 {
		r.Places = append(r.Places[:shown], fmt.Sprintf("%d more", more))
	}
	if len(r.Places) > 0 {
		lost += ": " + strings.Join(r.Places, "; ")
	}
	return lost
}
