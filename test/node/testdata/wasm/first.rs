// A first program in Rust:
// rustc --target wasm32-wasip1 -O -o first.wasm first.rs
use std::{env, fs, process::exit, time::SystemTime};

/// Returns the path of a thing that the argument grants: {"name":{"path":"/data"}}.
fn grant<'a>(argument: &'a str, name: &str) -> Option<&'a str> {
    let key = format!("\"{}\":{{\"path\":\"", name);
    let at = argument.find(&key)? + key.len();
    argument[at..].split('"').next()
}

fn main() {
    let argument = fs::read_to_string("/argdata.json").expect("argument");
    let args: Vec<String> = env::args().collect();
    println!("first of {}: {}", args.len(), args[args.len() - 1]);
    match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) if since.as_secs() > 1_700_000_000 => {}
        _ => println!("without the time"),
    }
    if fs::read("/etc/passwd").is_ok() {
        println!("read what was not given");
    }
    let data = if let Some(data) = grant(&argument, "data") { data } else {
        println!("no data");
        exit(3)
    };
    if let Err(err) = fs::write(format!("{data}/written"), "by a module") {
        println!("{err}");
        exit(4)
    }
    exit(5)
}
