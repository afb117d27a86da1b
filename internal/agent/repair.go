package agent

import (
	"errors"
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
	"github.com/longshore/longshore/internal/volume"
)

// Repair repairs the damaged files of a node while its agent does not run. With dry it only
// reports. It writes a line for each file to w.
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
	volumes, verr := volume.Repair(filepath.Join(root, "volumes"), dry)
	err = errors.Join(err, verr)
	for _, v := range volumes {
		if _, werr := fmt.Fprintf(w, "%s: %s\n", v.Dir, volumeResult(v)); werr != nil {
			return werr
		}
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

func volumeResult(v volume.Repaired) string {
	if !v.Made {
		return "its record and the copy are damaged, and they name the place of its content: move this directory away and create the volume again with its options"
	}
	return "its record and the copy were damaged: it has a new record; its labels are lost, and the damaged files are kept beside it"
}

// openVolumes returns the node's volumes, in use from now on. One damaged record must not keep all
// others from their containers: it gets a new one as by `longshore repair`, or cannot be used.
func openVolumes(dir string, log *slog.Logger) (*volume.Local, error) {
	volumes, err := volume.New(dir)
	if err != nil {
		return nil, err
	}
	repaired, err := volume.Repair(dir, false)
	for _, v := range repaired {
		log.Error("a volume is damaged", "volume", v.Dir, "result", volumeResult(v))
	}
	return volumes, err
}

func repairResult(r dbfile.Report) string {
	if r.Whole {
		return fmt.Sprintf("all its %d entries are in its copy: nothing is lost", r.Entries)
	}
	lost := fmt.Sprintf("%d entries could be read; the entries in the damaged places are lost", r.Entries)
	if r.Dropped > 0 {
		lost += fmt.Sprintf(", and so are %d entries that are invalid or need a lost one", r.Dropped)
	}
	const shown = 5
	if more := len(r.Places) - shown; more > 0 {
		r.Places = append(r.Places[:shown], fmt.Sprintf("%d more", more))
	}
	if len(r.Places) > 0 {
		lost += ": " + strings.Join(r.Places, "; ")
	}
	for _, name := range r.Lost {
		lost += "\n  lost: " + name
	}
	return lost
}
