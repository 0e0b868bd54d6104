//! Prints what copying costs on this machine, and from where on the copy engine is used.

fn main() {
    print!("{}", toehold_copy::calibration_report());
}
