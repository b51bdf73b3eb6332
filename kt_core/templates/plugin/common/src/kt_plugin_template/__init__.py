"""@SUMMARY@"""
