// Builds the page into internal/ui/dist, and writes the sums of the sources to internal/ui/sources.sum: a test compares them with the
// files, so that the built files are of these sources.
import { createHash } from "node:crypto";
import { cpSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const web = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(web, "../internal/ui/dist");
const sums = process.argv[2] ? join(process.argv[2], "../sources.sum") : join(web, "../internal/ui/sources.sum");

// The policy of the page permits neither style elements nor style attributes in markup. xterm.js makes both. The styles of its elements
// go to style sheets that scripts make, and its attributes to the same properties of the element.
const styles = {
  name: "styles",
  setup(b) {
    b.onLoad({ filter: /@xterm\/xterm\/lib\/xterm\.mjs$/ }, (args) => {
      let text = readFileSync(args.path, "utf8");
      const replace = (from, to, times) => {
        const found = text.split(from).length - 1;
        if (found !== times) throw new Error(`${args.path} has ${from} ${found} times, not ${times}: look whether its styles still work`);
        text = text.replaceAll(from, to);
      };
      replace('createElement("style")', 'createElement("longshore-style")', 3);
      const attribute = /([\w$]+)\.setAttribute\("style",`\$\{\1\.getAttribute\("style"\)\|\|""\}\$\{([\w$]+)\};`\)/g;
      if ((text.match(attribute) ?? []).length !== 1) throw new Error(args.path + " sets the attribute style otherwise");
      text = text.replace(attribute, "$1.style.cssText+=$2+';'");
      return { contents: text, loader: "js" };
    });
  },
};

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
await build({
  absWorkingDir: web,
  entryPoints: ["src/main.tsx", "src/main.css"],
  outdir: out,
  bundle: true,
  splitting: true,
  format: "esm",
  target: "es2022",
  minify: true,
  sourcemap: false,
  legalComments: "none",
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  entryNames: "[name]",
  chunkNames: "[name]-[hash]",
  plugins: [styles],
  logLevel: "warning",
});
for (const name of ["index.html", "icon.svg"]) cpSync(join(web, "src", name), join(out, name));
const licenses = ["preact", "@xterm/xterm", "@xterm/addon-fit"].map((p) => {
  const { version } = JSON.parse(readFileSync(join(web, "node_modules", p, "package.json"), "utf8"));
  return `${p} ${version}\n\n${readFileSync(join(web, "node_modules", p, "LICENSE"), "utf8").trim()}\n`;
});
writeFileSync(join(out, "licenses.txt"), "This page contains the following programs.\n\n" + licenses.join("\n\n"));

const files = [...readdirSync(join(web, "src")).map((n) => "src/" + n), "build.mjs", "package.json", "package-lock.json", "tsconfig.json"].sort();
writeFileSync(sums, files.map((f) => createHash("sha256").update(readFileSync(join(web, f))).digest("hex") + "  " + f + "\n").join(""));
